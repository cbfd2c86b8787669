#include "stagecraft/graph/own_operators.h"

#include <optional>
#include <string>
#include <utility>

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include "stagecraft/graph/graph.h"

namespace stagecraft {

namespace {

void refuse(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack*) {
  throw GraphError("stagecraft::cond runs only in a graph");
}

void do_nothing(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack*) {}

struct OwnOperator {
  OwnOperator(const std::string& name, const std::string& signature, c10::KernelFunction function,
              std::optional<c10::DispatchKey> key = std::nullopt) {
    auto& dispatcher = c10::Dispatcher::singleton();
    schema = dispatcher.registerDef(torch::jit::parseSchema(name + signature), "stagecraft");
    kernel = dispatcher.registerImpl({name, ""}, key, std::move(function), std::nullopt, nullptr,
                                     "stagecraft");
  }
  c10::RegistrationHandleRAII schema{[] {}};
  c10::RegistrationHandleRAII kernel{[] {}};
};

}  // namespace

void register_own_operators() {
  static const OwnOperator cond(kCondOperator,
                                "(Tensor predicate, Tensor[] operands, int[] sizes) -> Tensor[]",
                                c10::KernelFunction::makeFromBoxedFunction<&refuse>());
  // Not a composite of other operators, so that torch.export keeps it.
  static const OwnOperator split(kSplitOperator, "() -> ()",
                                 c10::KernelFunction::makeFromBoxedFunction<&do_nothing>(),
                                 c10::DispatchKey::CompositeExplicitAutograd);
}

}  // namespace stagecraft
