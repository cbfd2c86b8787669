#pragma once

#include <stdexcept>

namespace stagecraft::detail {

/// This rank cannot receive a value because it lacks memory or because its own device fails. The
/// sender is not at fault.
class OutOfMemory : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace stagecraft::detail
