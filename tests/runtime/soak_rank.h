#pragma once

#include <cstdint>
#include <string>

#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// Called on every rank: trains 300 steps and then so many more, each with other shapes than the
/// last. Nothing, or what has grown in the latter: memory or open files.
std::string soak(Transport& transport, int64_t steps, uint64_t seed);

/// As the environment says (SC_SOAK_STEPS), 300 without it.
int64_t soak_steps();

}  // namespace stagecraft
