#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stagecraft/runtime/action_memory.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/sim/simulate.h"

namespace stagecraft {

/// The peak memory of one rank, in bytes of tensors.
struct RankMemory {
  int64_t parameters = 0;
  int64_t gradients = 0;    ///< of the parameters
  int64_t activations = 0;  ///< everything that a step allocates and frees, at its peak
  std::string at;           ///< the action of the peak, such as "2F3"

  int64_t total() const { return parameters + gradients + activations; }
};

/// The peak memory of every rank.
struct MemoryEstimate {
  std::vector<RankMemory> ranks;

  int64_t peak() const;
};

/// Estimates the peak memory of a schedule from the actions of one microbatch (`stages`, by stage;
/// actions that were not measured count as 0). The estimate executes each rank's list in order and
/// adds what each action, also a send, allocates and frees. Values in transfer between ranks are
/// not counted. A B that was not measured counts as I and W. Without I and W, I counts as B, and W
/// as 0. ArgumentError unless there is an entry for each stage of the schedule.
MemoryEstimate estimate_memory(const Schedule& schedule, std::span<const StageMemory> stages);

/// The same over time, by rank. Parameters and gradients count from the start. During an action a
/// sample has the action's peak, between actions what remains. `timeline` is that of a Simulation
/// of `schedule`.
std::vector<std::vector<MemorySample>> estimate_memory_over_time(
    const Schedule& schedule, const std::vector<std::vector<Interval>>& timeline,
    std::span<const StageMemory> stages);

}  // namespace stagecraft
