#include "stagecraft/compiled/compiled_operators.h"

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include "stagecraft/graph/grouped_mm.h"

namespace stagecraft::detail {

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
    return made;
  }();
  static_cast<void>(handles);
}

}  // namespace stagecraft::detail
