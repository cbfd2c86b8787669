#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stagecraft/runtime/record/recording.h"

namespace stagecraft {

/// Where a rank's time went, in microseconds: compute + bubble + exposed_transfer +
/// waiting_for_weights + other is the makespan.
struct RankReport {
  double compute = 0;  ///< in F, I, W and B, waiting excluded
  double bubble = 0;   ///< waiting for values that were not sent yet, and after its last action
  double exposed_transfer = 0;     ///< waiting for values that were already sent
  double waiting_for_weights = 0;  ///< of sharded stages, which other replicas had not sent yet or
                                   ///< which were in transfer
  double other = 0;                ///< the rest: sends, bookkeeping
  double bubble_share = 0;         ///< bubble / makespan; 0 when the makespan is 0

  /// The four parts of the bubble: waiting before the first compute, later waiting for activations
  /// and for gradients that were not sent yet, and the time after the last action.
  double start_up = 0;
  double waiting_for_activations = 0;
  double waiting_for_gradients = 0;
  double run_out = 0;
  double exposed_gradients = 0;  ///< of exposed_transfer; the rest were activations

  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  std::optional<int64_t> peak_memory = std::nullopt;  ///< bytes

  /// The host beside the device, for a rank whose times are those of a device, in microseconds.
  struct Host {
    double compute = 0;       ///< the host was in F, I, W and B, waiting excluded
    double late = 0;          ///< the device had no work between actions, because the host was late
    double launch_bound = 0;  ///< of the compute: launching took as long as computing
  };
  bool is_device_time = false;              ///< the times are those of the device
  bool is_replayed = false;                 ///< the step was one launch
  std::optional<Host> host = std::nullopt;  ///< nothing for a replayed step
  std::optional<RankRecording::DeviceMemory> device_memory = std::nullopt;
};

/// Where the time of a step went.
struct StepReport {
  double makespan = 0;      ///< microseconds
  double bubble_share = 0;  ///< of all ranks' time
  int64_t actions = 0;      ///< of the schedule
  int64_t not_run = 0;      ///< actions that did not run; above 0 if the step failed
  std::vector<RankReport> ranks = {};
};

/// ArgumentError unless the recording has the ranks and actions of its schedule.
StepReport make_report(const Recording& recording);

/// A table with a line for each rank, and lines about devices; every line ends with "\n".
std::string to_text(const StepReport& report);

}  // namespace stagecraft
