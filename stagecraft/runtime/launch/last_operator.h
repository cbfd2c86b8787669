#pragma once

#include <cstdint>
#include <string>

namespace stagecraft::detail {

/// Notes the operators that the calling thread, and autograd's threads for it, call while the
/// object lives. For the message about work that cannot be captured.
class LastOperator {
 public:
  LastOperator();
  ~LastOperator();
  LastOperator(const LastOperator&) = delete;
  LastOperator& operator=(const LastOperator&) = delete;

  /// The name of the operator that was called last; empty if there was none.
  static std::string name();

 private:
  uint64_t callback_;
};

}  // namespace stagecraft::detail
