#include "stagecraft/stage/around_forward.h"

#include <exception>
#include <memory>
#include <thread>
#include <utility>

#include "stagecraft/base/check.h"

namespace stagecraft::detail {
namespace {

// Shared with the function that the scope gets: the scope may keep a copy of it.
struct ForwardCall {
  ForwardInfo info;
  std::thread::id thread = std::this_thread::get_id();
  const c10::function_ref<c10::IValue()>* forward = nullptr;  // null when the scope has ended
  c10::IValue output = {};
  int calls = 0;
  std::exception_ptr thrown = nullptr;

  void run() {
    require<ArgumentError>(
        thread == std::this_thread::get_id(),
        "stage {}, microbatch {}: StageOptions::around_forward must call forward on the thread on "
        "which it is called",
        info.stage.value(), info.microbatch.value());
    require<ArgumentError>(
        forward != nullptr,
        "stage {}, microbatch {}: forward was called after StageOptions::around_forward had "
        "returned",
        info.stage.value(), info.microbatch.value());
    ++calls;
    check_calls();
    try {
      output = (*forward)();
    } catch (...) {
      // Kept, because the program's scope might catch it: the failed forward would then look
      // complete.
      thrown = std::current_exception();
      throw;
    }
  }

  void check_calls() const {
    require<ArgumentError>(
        calls == 1,
        "stage {}, microbatch {}: StageOptions::around_forward must call forward "
        "once, but called it {} times",
        info.stage.value(), info.microbatch.value(), calls);
  }
};

// The forward ends with the scope, also if the scope throws.
struct EndOfScope {
  ForwardCall& call;
  ~EndOfScope() { call.forward = nullptr; }
};

}  // namespace

c10::IValue call_around(const AroundForward& around, const ForwardInfo& info,
                        c10::function_ref<c10::IValue()> forward) {
  const auto call = std::make_shared<ForwardCall>(ForwardCall{.info = info, .forward = &forward});
  {
    const EndOfScope end{*call};
    around(call->info, [call] { call->run(); });
  }
  // After the scope: it may not have called forward at all.
  call->check_calls();
  if (call->thrown != nullptr) {
    throw ArgumentError(fmt::format(
        "stage {}, microbatch {}: StageOptions::around_forward must pass on the exception of "
        "forward, but swallowed it: {}",
        info.stage.value(), info.microbatch.value(), describe(call->thrown)));
  }
  // A copy of the function may outlive the forward, but the output must not.
  return std::move(call->output);
}

}  // namespace stagecraft::detail
