#pragma once

#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DispatchKey.h>

namespace stagecraft::detail {

/// Teaches aten's random operators to draw from the calling thread's RandomScope where `key` is on;
/// all other operators pass it by at no cost. They forget it when this ends.
class RandomOperators {
 public:
  /// Throws Error, and changes nothing, when someone has a use for `key` already.
  explicit RandomOperators(c10::DispatchKey key);

  /// How many operators were taught.
  std::size_t count() const { return kernels_.size(); }

 private:
  c10::RegistrationHandleRAII others_;
  std::vector<c10::RegistrationHandleRAII> kernels_;
};

/// The key that switches the scope on. The operators are taught once, before `main` where possible:
/// the dispatcher's tables must not change while another thread calls operators. Throws Error when
/// that failed.
c10::DispatchKey random_dispatch_key();

}  // namespace stagecraft::detail
