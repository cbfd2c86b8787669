#pragma once

#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DispatchKey.h>

namespace stagecraft::detail {

/// Registers kernels that make aten's random operators draw from the calling thread's RandomScope
/// while `key` is on. Other operators are not affected. The destructor removes the kernels.
class RandomOperators {
 public:
  /// Error, without a change, if `key` is already in use.
  explicit RandomOperators(c10::DispatchKey key);

  /// The number of operators with such a kernel.
  std::size_t count() const { return kernels_.size(); }

 private:
  c10::RegistrationHandleRAII others_;
  std::vector<c10::RegistrationHandleRAII> kernels_;
};

/// The key that switches the scope on. The kernels are registered once, before `main` if possible,
/// because the dispatcher's tables must not change while a different thread calls operators. Error
/// if the registration failed.
c10::DispatchKey random_dispatch_key();

}  // namespace stagecraft::detail
