#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>

#include "stagecraft/transport/transport.h"
#include "tests/runtime/harness.h"

namespace stagecraft {

/// What happens to one rank of a pipeline while it trains.
struct Fault {
  enum class Strike : uint8_t { kKill, kStop, kExit, kThrow };

  ScheduleCase schedule;
  int32_t victim = 0;
  /// At the beginning of its n-th action, counted over all steps.
  int32_t action = 0;
  Strike strike = Strike::kKill;
};

/// "1F1B, 2 ranks, ...: rank 1 is killed at its action 17".
std::string to_string(const Fault& fault);

/// Any of it: within the first three steps of one of the schedules.
Fault random_fault(std::mt19937_64& random, const std::vector<ScheduleCase>& schedules);

/// Called on every rank: trains until the fault ends it. `on_strike` is called on the victim just
/// before, `on_ready` after the first step. Throws the exception of the step. Returns if no step
/// throws for a very long time, which is a defect.
void train_until_fault(Transport& transport, const Fault& fault,
                       const std::function<void()>& on_strike,
                       const std::function<void()>& on_ready = {});

/// Nothing, or what is wrong with an error of a survivor.
std::string check_survivor(const Fault& fault, const std::string& type, const std::string& message);

}  // namespace stagecraft
