#include "stagecraft/graph/cond.h"

#include <optional>

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include "stagecraft/graph/graph.h"

namespace stagecraft {

namespace {

void refuse(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack*) {
  throw GraphError("stagecraft::cond runs in a graph only");
}

struct CondOperator {
  CondOperator() {
    auto& dispatcher = c10::Dispatcher::singleton();
    schema = dispatcher.registerDef(
        torch::jit::parseSchema("stagecraft::cond(Tensor predicate, Tensor[] operands, int[] sizes)"
                                " -> Tensor[]"),
        "stagecraft");
    kernel = dispatcher.registerImpl({kCondOperator, ""}, std::nullopt,
                                     c10::KernelFunction::makeFromBoxedFunction<&refuse>(),
                                     std::nullopt, nullptr, "stagecraft");
  }
  c10::RegistrationHandleRAII schema{[] {}};
  c10::RegistrationHandleRAII kernel{[] {}};
};

}  // namespace

void register_cond_operator() {
  static const CondOperator registered;
}

}  // namespace stagecraft
