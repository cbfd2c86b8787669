#include "stagecraft/graph/element_shapes.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

#include <ATen/TensorOperators.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/count_nonzero.h>
#include <ATen/ops/index_fill.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>

namespace stagecraft {

namespace {

struct Decider {
  std::string_view op;
  std::string_view overload;  // "*": all of them
  std::size_t argument;
  bool is_choice;
};

constexpr std::array<Decider, 15> kDeciders = {{
    {"aten::nonzero", "*", 0, true},
    {"aten::nonzero_numpy", "*", 0, true},
    {"aten::argwhere", "*", 0, true},
    {"aten::where", "", 0, true},
    {"aten::masked_select", "*", 1, true},
    {"aten::index", "Tensor", 1, true},
    {"aten::_unique", "*", 0, false},
    {"aten::_unique2", "*", 0, false},
    {"aten::unique_dim", "*", 0, false},
    {"aten::unique_consecutive", "*", 0, false},
    {"aten::unique_dim_consecutive", "*", 0, false},
    {"aten::repeat_interleave", "Tensor", 0, true},
    {"aten::repeat_interleave", "self_Tensor", 1, true},
    {"aten::bincount", "*", 0, false},
    {"aten::one_hot", "*", 0, false},
}};

/// Elements of which another number is chosen: one where there were more, else all. Never none,
/// of which not every model can make something.
at::Tensor other_choice(const at::Tensor& mask) {
  const at::Tensor flat = mask.flatten();
  if (flat.numel() == 0 || flat.count_nonzero().item<int64_t>() <= 1) return at::ones_like(mask);
  const at::Tensor first = (flat != 0).to(at::kInt).argmax();
  return at::zeros_like(flat).index_fill(0, first, 1).view(mask.sizes());
}

/// Values of which there is another number, or another greatest one.
at::Tensor other_values(const at::Tensor& values) {
  if (values.numel() == 0) return values;
  const at::Tensor greatest = values.max();
  if (!greatest.eq(values.min()).item<bool>()) return at::zeros_like(values);
  return (at::arange(1, values.numel() + 1, values.options()) + greatest).view(values.sizes());
}

bool is_mask(const at::Tensor& index) {
  return index.defined() && (index.scalar_type() == at::kBool || index.scalar_type() == at::kByte);
}

const Decider* find_decider(const c10::FunctionSchema& schema) {
  for (const Decider& decider : kDeciders) {
    if (decider.op == schema.name() &&
        (decider.overload == "*" || decider.overload == schema.overload_name())) {
      return &decider;
    }
  }
  return nullptr;
}

}  // namespace

std::optional<std::size_t> shape_deciding_argument(const c10::FunctionSchema& schema) {
  const Decider* decider = find_decider(schema);
  return decider == nullptr ? std::nullopt : std::optional(decider->argument);
}

c10::IValue with_other_elements(const c10::IValue& argument, const c10::FunctionSchema& schema) {
  const Decider* decider = find_decider(schema);
  const auto other = decider != nullptr && decider->is_choice ? other_choice : other_values;
  if (argument.isTensor()) return other(argument.toTensor());
  if (!argument.isList()) return argument;
  c10::List<std::optional<at::Tensor>> indices;
  for (const c10::IValue& each : argument.toListRef()) {
    if (!each.isTensor()) {
      indices.push_back(std::nullopt);
    } else {
      indices.push_back(is_mask(each.toTensor()) ? other(each.toTensor()) : each.toTensor());
    }
  }
  return indices;
}

}  // namespace stagecraft
