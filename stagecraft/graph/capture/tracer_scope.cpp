#include <exception>
#include <string>

#include <ATen/core/boxing/KernelFunction.h>

#include "stagecraft/base/check.h"
#include "stagecraft/graph/capture/scope.h"
#include "stagecraft/graph/capture/tracer.h"
#include "stagecraft/graph/graph.h"
#include "stagecraft/graph/own_operators.h"

namespace stagecraft {

namespace {
// With this key a fallback sees operators before autograd and autocast, and composite operators
// whole.

// This key is handled before autograd and autocast, so the graph has the operators that the model
// calls, and composite operators arrive whole.
constexpr c10::DispatchKey kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

thread_local Tracer* tracer_of_thread = nullptr;

void record(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  // Operators that this one calls inside are part of it, and must not be recorded.
  const c10::impl::ExcludeDispatchKeyGuard off(kKey);
  // torch copies a thread's keys to threads of the autograd engine, which have no tracer.
  if (tracer_of_thread == nullptr) {
    op.callBoxed(stack);
  } else {
    tracer_of_thread->record(op, *stack);
  }
}

/// The registrations of capture with torch's dispatcher.
struct Registrations {
  Registrations() {
    auto& dispatcher = c10::Dispatcher::singleton();
    fallback = dispatcher.registerFallback(
        kKey, c10::KernelFunction::makeFromBoxedFunction<&record>(), "stagecraft capture");
  }
  c10::RegistrationHandleRAII fallback{[] {}};
};

c10::DispatchKey dispatch_key() {
  static const std::string problem = [] {
    try {
      static const Registrations registrations;
      return std::string();
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
  }();
  require<Error>(problem.empty(),
                 "capture needs the dispatch key {}, which is already in use in this program: {}",
                 toString(kKey), problem);
  return kKey;
}

const c10::OperatorHandle& split_operator() {
  register_own_operators();
  static const c10::OperatorHandle op =
      c10::Dispatcher::singleton().findSchemaOrThrow(kSplitOperator, "");
  return op;
}

}  // namespace

TracerScope::TracerScope(Tracer& tracer) : on_(dispatch_key()) {
  require<Error>(tracer_of_thread == nullptr, "a capture is running on this thread already");
  tracer_of_thread = &tracer;
}

TracerScope::~TracerScope() {
  tracer_of_thread = nullptr;
}

ScopeGuard::ScopeGuard(const std::string& name) : is_entered_(tracer_of_thread != nullptr) {
  if (is_entered_) tracer_of_thread->enter_scope(name);
}

ScopeGuard::~ScopeGuard() {
  if (is_entered_ && tracer_of_thread != nullptr) tracer_of_thread->leave_scope();
}

void pipe_split() {
  if (tracer_of_thread == nullptr) return;
  torch::jit::Stack stack;
  // A call of an operator, so that the tracer sees the split in its place among the others.
  split_operator().callBoxed(stack);
}

}  // namespace stagecraft
