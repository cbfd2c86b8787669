#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stagecraft/runtime/action_memory.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/sim/simulate.h"

namespace stagecraft {

/// What one rank will hold at the most, in bytes of tensors.
struct RankMemory {
  int64_t parameters = 0;
  int64_t gradients = 0;    ///< of the parameters
  int64_t activations = 0;  ///< all that comes and goes during a step, at its peak
  std::string at;           ///< the action at which that is, "2F3"

  int64_t total() const { return parameters + gradients + activations; }
};

/// What every rank will hold at the most.
struct MemoryEstimate {
  std::vector<RankMemory> ranks;

  int64_t peak() const;
};

/// What a schedule will take, from what one microbatch's actions did (`stages`, by stage; what is
/// not measured counts as nothing): each rank's list is gone through in order, adding what each
/// action keeps and frees, what it sends included. Values on their way between ranks are not
/// counted. A B that was not measured counts as I and W, and the other way round: I as all of
/// B, W as nothing. ArgumentError unless there is an entry for each stage of the schedule.
MemoryEstimate estimate_memory(const Schedule& schedule, std::span<const StageMemory> stages);

/// The same over time, by rank: parameters and gradients from the start on, during an action the
/// most that it holds on top of them, between actions what stays. `timeline` is of `schedule`, as
/// Simulation has it.
std::vector<std::vector<MemorySample>> estimate_memory_over_time(
    const Schedule& schedule, const std::vector<std::vector<Interval>>& timeline,
    std::span<const StageMemory> stages);

}  // namespace stagecraft
