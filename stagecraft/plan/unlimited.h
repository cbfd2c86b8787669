#pragma once

#include <limits>

namespace stagecraft::plan {

/// A memory without limit, a time that is never reached.
inline constexpr double kUnlimited = std::numeric_limits<double>::infinity();

}  // namespace stagecraft::plan
