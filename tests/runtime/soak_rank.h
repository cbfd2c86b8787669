#pragma once

#include <cstdint>
#include <string>

#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// Called on every rank: trains 300 steps and then `steps` more. The shapes change at each step.
/// Returns what grew during the last `steps` (memory or open files), or nothing.
std::string soak(Transport& transport, int64_t steps, uint64_t seed);

/// As the environment says (SC_SOAK_STEPS), 300 without it.
int64_t soak_steps();

}  // namespace stagecraft
