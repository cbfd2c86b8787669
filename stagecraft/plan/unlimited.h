#pragma once

#include <limits>

namespace stagecraft::plan {

/// An unlimited memory, or a time that is never reached.
inline constexpr double kUnlimited = std::numeric_limits<double>::infinity();

}  // namespace stagecraft::plan
