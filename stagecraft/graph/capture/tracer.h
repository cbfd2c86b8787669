#pragma once

#include <memory>
#include <string>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "stagecraft/graph/capture/trace.h"

namespace stagecraft {

/// Records every operator that a thread calls while the tracer is on.
class Tracer {
 public:
  Tracer(const StageBody& model, const TraceOptions& options);
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  /// Runs the operator on the stack and records it.
  void record(const c10::OperatorHandle& op, torch::jit::Stack& stack);
  void enter_scope(const std::string& name);
  void leave_scope();

 private:
  friend GraphParts trace(const StageBody& model, const Arguments& arguments,
                          const TraceOptions& options);
  friend OtherElements trace_with_other_elements(const StageBody& model, const Arguments& arguments,
                                                 ElementChange change, const TraceOptions& options);
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// The tracer that is on for this thread; null if none is.
Tracer* current_tracer();

/// Switches a tracer on for this thread. Throws Error if one is on already, or if a different
/// library uses its dispatch key.
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
