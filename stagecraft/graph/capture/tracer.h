#pragma once

#include <string>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace stagecraft {

/// Sees every operator that a thread calls while the tracer is on.
class Tracer {
 public:
  virtual ~Tracer() = default;
  /// Runs the operator on the stack and records it.
  virtual void record(const c10::OperatorHandle& op, torch::jit::Stack& stack) = 0;
  virtual void enter_scope(const std::string& name) = 0;
  virtual void leave_scope() = 0;
};

/// Switches a tracer on for this thread. Throws Error if a tracer is already on, or if a different
/// library uses the tracer's dispatch key.
class TracerScope {
 public:
  explicit TracerScope(Tracer& tracer);
  ~TracerScope();
  TracerScope(const TracerScope&) = delete;
  TracerScope& operator=(const TracerScope&) = delete;

 private:
  c10::impl::IncludeDispatchKeyGuard on_;
};

}  // namespace stagecraft
