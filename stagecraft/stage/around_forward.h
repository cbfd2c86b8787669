#pragma once

#include <functional>

#include <ATen/core/ivalue.h>
#include <c10/util/FunctionRef.h>

#include "stagecraft/base/index.h"

namespace stagecraft {

/// The forward that a scope surrounds.
struct ForwardInfo {
  StageId stage;
  MicrobatchId microbatch;
  bool is_training = true;        ///< a backward will follow
  bool is_recomputation = false;  ///< the second run of a forward (StageOptions::recompute)
};

/// A scope around a forward: a function that calls `forward` once, on the same thread.
///
///   options.around_forward = [](const ForwardInfo& info, const std::function<void()>& forward) {
///     const MyRange range(info.stage, info.microbatch);
///     forward();
///   };
///
/// It is a function, not an object whose constructor and destructor are the two ends: guards are
/// then local variables of any type, which end in the right order, and an exception of the forward
/// passes through them as through every caller.
///
/// `info` and `forward` may be copied and kept. A copy of `forward` that is called after the scope
/// has returned, or on a different thread, throws ArgumentError.
///
/// The scope sees neither arguments nor random numbers of the forward: current_stage() is that of
/// the caller, and what the scope draws does not change what the forward draws.
using AroundForward =
    std::function<void(const ForwardInfo& info, const std::function<void()>& forward)>;

namespace detail {

/// The result of `forward`, called in the scope. Exceptions of either pass unchanged. ArgumentError
/// if the scope did not call `forward`, called it twice, or swallowed its exception.
c10::IValue call_around(const AroundForward& around, const ForwardInfo& info,
                        c10::function_ref<c10::IValue()> forward);

}  // namespace detail
}  // namespace stagecraft
