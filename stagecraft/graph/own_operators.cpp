#include "stagecraft/graph/own_operators.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include "stagecraft/graph/graph.h"
#include "stagecraft/graph/grouped_mm.h"

namespace stagecraft {

namespace {

void refuse(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack*) {
  throw GraphError("stagecraft::cond runs only in a graph");
}

void do_nothing(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack*) {}

class OwnOperator {
 public:
  OwnOperator(std::string name, const std::string& signature) : name_(std::move(name)) {
    handles_.push_back(c10::Dispatcher::singleton().registerDef(
        torch::jit::parseSchema(name_ + signature), "stagecraft"));
  }

  OwnOperator with(std::optional<c10::DispatchKey> key, c10::KernelFunction kernel) && {
    handles_.push_back(c10::Dispatcher::singleton().registerImpl(
        {name_, ""}, key, std::move(kernel), std::nullopt, nullptr, "stagecraft"));
    return std::move(*this);
  }

 private:
  std::string name_;
  std::vector<c10::RegistrationHandleRAII> handles_;
};

}  // namespace

void register_own_operators() {
  using c10::KernelFunction;
  // Static objects in a function: registered when first needed, once, whatever the order of
  // initialisation.
  static const OwnOperator cond =
      OwnOperator(kCondOperator, "(Tensor predicate, Tensor[] operands, int[] sizes) -> Tensor[]")
          // The program runs the branches itself. The operator exists so that a node has a schema.
          .with(std::nullopt, KernelFunction::makeFromBoxedFunction<&refuse>());
  // Not a composite of other operators, so that torch.export keeps it.
  static const OwnOperator split = OwnOperator(kSplitOperator, "() -> ()")
                                       .with(c10::DispatchKey::CompositeExplicitAutograd,
                                             KernelFunction::makeFromBoxedFunction<&do_nothing>());
  static const OwnOperator grouped =
      OwnOperator(kGroupedMmOperator, "(Tensor input, Tensor weight, Tensor offs) -> Tensor")
          .with(c10::DispatchKey::CompositeExplicitAutograd,
                KernelFunction::makeFromUnboxedFunction(TORCH_FN(grouped_mm)))
          .with(c10::DispatchKey::Autograd,
                KernelFunction::makeFromUnboxedFunction(TORCH_FN(differentiable_grouped_mm)));
}

}  // namespace stagecraft
