#pragma once

#include <stdexcept>

namespace stagecraft::detail {

/// This rank has no memory for a value that it receives, or its own device fails: not the sender's
/// fault.
class OutOfMemory : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace stagecraft::detail
