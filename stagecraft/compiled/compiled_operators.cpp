#include "stagecraft/compiled/compiled_operators.h"

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <c10/core/SymInt.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include "stagecraft/graph/grouped_mm.h"

namespace stagecraft::detail {
namespace {

at::Tensor embedding_weights(const at::Tensor& grad, const at::Tensor& indices,
                             c10::SymInt num_weights, c10::SymInt padding_idx,
                             bool scale_grad_by_freq) {
  return at::embedding_dense_backward_symint(grad, indices, std::move(num_weights),
                                             std::move(padding_idx), scale_grad_by_freq);
}

}  // namespace

void register_compiled_operators() {
  static const std::vector<c10::RegistrationHandleRAII> handles = [] {
    c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
    std::vector<c10::RegistrationHandleRAII> made;
    const auto add = [&](const std::string& name, const std::string& signature,
                         c10::KernelFunction kernel) {
      made.push_back(
          dispatcher.registerDef(torch::jit::parseSchema(name + signature), "stagecraft"));
      made.push_back(
          dispatcher.registerImpl({name, ""}, c10::DispatchKey::CompositeExplicitAutograd,
                                  std::move(kernel), std::nullopt, nullptr, "stagecraft"));
    };
    using c10::KernelFunction;
    add("stagecraft_compiled::grouped_mm", "(Tensor input, Tensor weight, Tensor offs) -> Tensor",
        KernelFunction::makeFromUnboxedFunction(TORCH_FN(grouped_mm)));
    add("stagecraft_compiled::grouped_mm_weights",
        "(Tensor input, Tensor grad, Tensor offs) -> Tensor",
        KernelFunction::makeFromUnboxedFunction(TORCH_FN(grouped_mm_weights)));
    add("stagecraft_compiled::embedding_weights",
        "(Tensor grad, Tensor indices, SymInt num_weights, SymInt padding_idx, bool "
        "scale_grad_by_freq) -> Tensor",
        KernelFunction::makeFromUnboxedFunction(TORCH_FN(embedding_weights)));
    return made;
  }();
  static_cast<void>(handles);
}

}  // namespace stagecraft::detail
