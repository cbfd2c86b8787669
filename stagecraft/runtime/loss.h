#pragma once

#include <concepts>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/stage/callable.h"
#include "stagecraft/tree/arguments.h"

namespace stagecraft {

/// The loss: a function of the last stage's output, of the target and, by name, of the arguments in
/// StepOptions::loss_arguments. Every function that stage_body accepts is a loss:
///
///   .loss = [](const at::Tensor& y, const at::Tensor& target) { return at::mse_loss(y, target); }
///
/// It returns a tensor with one element, the mean (or sum) over its microbatch. The step weights
/// the losses of the microbatches. The function runs on the thread of the last stage's rank.
class Loss {
 public:
  using Function = std::function<c10::IValue(const c10::IValue& output, const c10::IValue& target,
                                             const Kwargs& arguments)>;

  /// No loss.
  Loss() = default;

  /// `names` are the names of the function's parameters, for arguments by name.
  template <typename F>
  requires(!std::same_as<std::decay_t<F>, Loss>)
      // NOLINTNEXTLINE(google-explicit-constructor): a loss is written where it is used
      Loss(F function, std::vector<std::string> names = {}) {
    if constexpr (std::invocable<F&, const c10::IValue&, const c10::IValue&, const Kwargs&>) {
      call_ = std::move(function);
    } else {
      auto body = stage_body(std::move(function), {}, std::move(names)).forward;
      call_ = [body = std::move(body)](const c10::IValue& output, const c10::IValue& target,
                                       const Kwargs& arguments) {
        return body(target.isNone() ? Args{output} : Args{output, target}, arguments);
      };
    }
  }

  explicit operator bool() const { return static_cast<bool>(call_); }
  /// ArgumentError unless the function returns a tensor with one element.
  at::Tensor operator()(const c10::IValue& output, const c10::IValue& target,
                        const Kwargs& arguments) const;

 private:
  Function call_;
};

}  // namespace stagecraft
