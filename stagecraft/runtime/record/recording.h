#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"
#include "stagecraft/sim/cost_model.h"
#include "stagecraft/sim/simulate.h"

namespace stagecraft {

/// The recording of one rank in a step. Times are nanoseconds since the start of the step, which is
/// the same moment for all ranks.
struct RankRecording {
  /// When one action ran.
  struct ActionTimes {
    int64_t begin = -1;  ///< -1: it did not run
    int64_t end = -1;    ///< -1: it did not end
    int64_t waited = 0;  ///< of that time, in waits that ended
    int64_t sent = 0;    ///< bytes that it sent to other ranks

    friend bool operator==(const ActionTimes&, const ActionTimes&) = default;
  };

  /// A stretch inside an action in which the rank waited for a transfer.
  struct Wait {
    /// What the rank waited for.
    enum class For : uint8_t {
      kValues,   ///< activations of a forward, gradients of a backward, or the end of a send
      kWeights,  ///< the weights of a sharded stage
    };
    std::size_t offset = 0;  ///< of the action
    int64_t begin = 0;
    int64_t end = -1;  ///< -1: it did not end
    int64_t sent = 0;  ///< when the transfer left; may be before or after the wait
    For what = For::kValues;

    friend bool operator==(const Wait&, const Wait&) = default;
  };

  /// Bytes of tensors that the step holds on the rank, without values in transfer to it.
  struct Held {
    int64_t most = -1;   ///< maximum during the action; -1: not measured
    int64_t after = -1;  ///< when it ended

    friend bool operator==(const Held&, const Held&) = default;
  };

  /// When the rank's device executed an action, on the clock of the other times. A device executes
  /// later than the host launches.
  struct DeviceTimes {
    int64_t begin = -1;  ///< -1: the device did not get there
    int64_t ready = -1;  ///< its values from other ranks were there; -1: it takes none
    int64_t end = -1;

    friend bool operator==(const DeviceTimes&, const DeviceTimes&) = default;
  };

  /// The memory that the device's allocator had reserved and handed out, in bytes. Ranks that share
  /// a process and a device share the numbers.
  struct DeviceMemory {
    int64_t allocated = 0;       ///< at the end of the step
    int64_t peak_allocated = 0;  ///< since StepOptions::measure_memory, or the start of the process
    int64_t reserved = 0;        ///< at the end of the step

    friend bool operator==(const DeviceMemory&, const DeviceMemory&) = default;
  };

  std::vector<ActionTimes> actions;  ///< by offset in the rank's list
  std::vector<Wait> waits;           ///< in the order of time; no two at once
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  std::optional<int64_t> peak_memory = std::nullopt;  ///< bytes
  std::vector<Held> held = {};  ///< by offset in the rank's list; empty unless memory was measured
  /// Bytes of the rank's parameters and of the gradients that they had before the step; 0 unless
  /// memory was measured.
  int64_t held_before = 0;
  std::vector<DeviceTimes> device = {};  ///< by offset; empty for a rank without a device
  /// The step was one launch, so `actions` has no times of the host.
  bool is_replayed = false;
  std::optional<DeviceMemory> device_memory = std::nullopt;

  friend bool operator==(const RankRecording&, const RankRecording&) = default;
};

/// The recording of all ranks in a step. The step may have failed: actions that did not run are
/// left out, and an action that did not end counts until the last recorded time.
///
/// For ranks that have RankRecording::device, everything that is made from a recording uses the
/// times at which the device ran an action, not those at which the host launched it.
struct Recording {
  Schedule schedule;
  StageGraph graph;
  std::vector<RankRecording> ranks;
};

/// The recording in the form that is drawn, in microseconds. An action starts when its waiting has
/// ended; an overlap spans its parts; idle slots and actions that did not run have Interval::ran()
/// false. Memory is what was held before the step plus, during an action, the action's peak, and
/// between actions what remained. It is empty unless it was measured. There is no critical path.
///
/// ArgumentError unless the recording has the ranks and actions of its schedule.
Simulation to_simulation(const Recording& recording);

/// The time of each F, I, W and B, waiting excluded, in microseconds. Transfers are free.
/// Simulating the schedule with it replays the step's own compute as if transfers took no time.
/// Actions that did not run cost nothing. ArgumentError as from to_simulation.
///
///   simulate(r.schedule, measured_costs(r), r.graph).makespan
CostModel measured_costs(const Recording& recording);

}  // namespace stagecraft
