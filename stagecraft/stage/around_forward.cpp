#include "stagecraft/stage/around_forward.h"

#include <exception>

#include "stagecraft/base/check.h"

namespace stagecraft::detail {

c10::IValue call_around(const AroundForward& around, const ForwardInfo& info,
                        c10::function_ref<c10::IValue()> forward) {
  c10::IValue output;
  int calls = 0;
  std::exception_ptr thrown;
  const auto check_calls = [&] {
    require<ArgumentError>(
        calls == 1,
        "stage {}, microbatch {}: StageOptions::around_forward must call forward "
        "once, but called it {} times",
        info.stage.value(), info.microbatch.value(), calls);
  };
  around(info, [&] {
    ++calls;
    check_calls();
    try {
      output = forward();
    } catch (...) {
      thrown = std::current_exception();
      throw;
    }
  });
  check_calls();
  if (thrown != nullptr) {
    throw ArgumentError(fmt::format(
        "stage {}, microbatch {}: StageOptions::around_forward must pass on the exception of "
        "forward, but swallowed it: {}",
        info.stage.value(), info.microbatch.value(), describe(thrown)));
  }
  return output;
}

}  // namespace stagecraft::detail
