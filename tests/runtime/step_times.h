#pragma once

#include <chrono>
#include <cmath>

#include "stagecraft/runtime/record/recorder.h"

namespace stagecraft {

/// When the steps of these tests begin.
inline constexpr Recorder::Time kZero(std::chrono::seconds(1000));

/// The time `us` microseconds into a step.
template <typename Number>
Recorder::Time at(Number us) {
  return kZero + std::chrono::nanoseconds(std::llround(static_cast<double>(us) * 1000));
}

}  // namespace stagecraft
