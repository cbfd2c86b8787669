#pragma once

#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "stagecraft/base/error.h"

namespace stagecraft {

/// Throws E with the formatted message unless `holds`. The arguments are evaluated either way; the
/// message is only made on failure.
///
///   require<ArgumentError>(chunks > 0, "chunks must be positive, got {}", chunks);
template <typename E, typename... Args>
void require(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) [[unlikely]] {
    throw E(fmt::format(format, std::forward<Args>(args)...));
  }
}

}  // namespace stagecraft
