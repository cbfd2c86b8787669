#include <exception>
#include <string>

#include <ATen/core/boxing/KernelFunction.h>

#include "stagecraft/base/check.h"
#include "stagecraft/graph/capture/scope.h"
#include "stagecraft/graph/capture/tracer.h"

namespace stagecraft {

namespace {

constexpr c10::DispatchKey kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

thread_local Tracer* tracer_of_thread = nullptr;

void record(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard off(kKey);
  if (tracer_of_thread == nullptr) {
    op.callBoxed(stack);
  } else {
    tracer_of_thread->record(op, *stack);
  }
}

void do_nothing(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack*) {}

/// What this library adds to the engine's registry; nothing when that failed.
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
                 "capture needs the dispatch key {}, which is taken in this program: {}",
                 toString(kKey), problem);
  return kKey;
}

struct SplitOperator {
  SplitOperator() {
    auto& dispatcher = c10::Dispatcher::singleton();
    const c10::OperatorName name(kSplitOperator, "");
    schema =
        dispatcher.registerDef(c10::FunctionSchema(kSplitOperator, "", std::vector<c10::Argument>{},
                                                   std::vector<c10::Argument>{}),
                               "stagecraft");
    kernel = dispatcher.registerImpl(name, std::nullopt,
                                     c10::KernelFunction::makeFromBoxedFunction<&do_nothing>(),
                                     std::nullopt, nullptr, "stagecraft");
  }
  c10::RegistrationHandleRAII schema{[] {}};
  c10::RegistrationHandleRAII kernel{[] {}};
};

const c10::OperatorHandle& split_operator() {
  static const SplitOperator registered;
  static const c10::OperatorHandle op =
      c10::Dispatcher::singleton().findSchemaOrThrow(kSplitOperator, "");
  return op;
}

}  // namespace

Tracer* current_tracer() {
  return tracer_of_thread;
}

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

void register_split_operator() {
  split_operator();
}

void pipe_split() {
  if (tracer_of_thread == nullptr) return;
  torch::jit::Stack stack;
  split_operator().callBoxed(stack);
}

}  // namespace stagecraft
