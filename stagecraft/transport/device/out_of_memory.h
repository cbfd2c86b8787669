#pragma once

#include <stdexcept>
#include <string>

namespace stagecraft::detail {

/// This rank cannot receive a value because it lacks memory or because its own device fails. The
/// sender is not at fault.
class OutOfMemory : public std::runtime_error {
 public:
  explicit OutOfMemory(const std::string& message, bool lacks_memory = false)
      : std::runtime_error(message), lacks_memory_(lacks_memory) {}

  /// Whether a lack of memory is known to be the cause.
  bool lacks_memory() const { return lacks_memory_; }

 private:
  bool lacks_memory_;
};

}  // namespace stagecraft::detail
