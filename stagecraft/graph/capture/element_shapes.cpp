#include "stagecraft/graph/capture/element_shapes.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <ATen/TensorOperators.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/count_nonzero.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/index_fill.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>

namespace stagecraft {

namespace {

/// How the elements determine the shape of the result. Different elements must be valid for their
/// operator: lengths above 0 and in order, places within the tensor.
enum class Meaning : uint8_t {
  kChoice,   // which elements are taken (masks), or how often each is repeated
  kValues,   // by the number of different values, or by the largest value
  kLengths,  // lengths of sequences, the longest first
  kPlaces,   // where to split
};

struct Decider {
  std::string_view op;
  std::string_view overload;  // "*": all of them
  std::size_t argument;
  Meaning meaning;
};

constexpr std::array<Decider, 18> kDeciders = {{
    {"aten::nonzero", "*", 0, Meaning::kChoice},
    {"aten::nonzero_numpy", "*", 0, Meaning::kChoice},
    {"aten::argwhere", "*", 0, Meaning::kChoice},
    {"aten::where", "", 0, Meaning::kChoice},
    {"aten::masked_select", "*", 1, Meaning::kChoice},
    {"aten::index", "*", 1, Meaning::kChoice},
    {"aten::_unique", "*", 0, Meaning::kValues},
    {"aten::_unique2", "*", 0, Meaning::kValues},
    {"aten::unique_dim", "*", 0, Meaning::kValues},
    {"aten::unique_consecutive", "*", 0, Meaning::kValues},
    {"aten::unique_dim_consecutive", "*", 0, Meaning::kValues},
    {"aten::repeat_interleave", "Tensor", 0, Meaning::kChoice},
    {"aten::repeat_interleave", "self_Tensor", 1, Meaning::kChoice},
    {"aten::bincount", "*", 0, Meaning::kValues},
    {"aten::one_hot", "*", 0, Meaning::kValues},
    {"aten::to_sparse", "*", 0, Meaning::kChoice},
    {"aten::_pack_padded_sequence", "*", 1, Meaning::kLengths},
    {"aten::tensor_split", "tensor_indices_or_sections", 1, Meaning::kPlaces},
}};

at::Tensor other_choice(const at::Tensor& mask, ElementChange change) {
  if (change == ElementChange::kAll) return at::ones_like(mask);
  at::Tensor none = at::zeros_like(mask);
  const at::Tensor flat = mask.flatten();
  if (change == ElementChange::kNone || flat.numel() == 0) return none;
  // An element that was chosen, if there is one: the model can most likely go on with that.
  const at::Tensor first = (flat != 0).to(at::kInt).argmax();
  return none.flatten().index_fill(0, first, 1).view(mask.sizes());
}

at::Tensor other_values(const at::Tensor& values, ElementChange change) {
  if (values.numel() == 0) return values;
  if (change != ElementChange::kAll) return at::zeros_like(values);
  // The greatest value changes. So does the number of different values, unless all differed before.
  return (at::arange(1, values.numel() + 1, values.options()) + values.max()).view(values.sizes());
}

at::Tensor other_elements(const at::Tensor& tensor, Meaning meaning, ElementChange change) {
  switch (meaning) {
    case Meaning::kChoice:
      return other_choice(tensor, change);
    case Meaning::kValues:
      return other_values(tensor, change);
    case Meaning::kLengths:
      return change == ElementChange::kOne ? at::ones_like(tensor)
                                           : at::full_like(tensor, tensor.max().item());
    case Meaning::kPlaces:
      return change == ElementChange::kOne ? at::ones_like(tensor) : at::zeros_like(tensor);
  }
  return tensor;
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

c10::IValue with_other_elements(const c10::IValue& argument, const c10::FunctionSchema& schema,
                                ElementChange change) {
  const Meaning meaning = find_decider(schema)->meaning;
  if (argument.isTensor()) return other_elements(argument.toTensor(), meaning, change);
  if (!argument.isList()) return argument;
  c10::List<std::optional<at::Tensor>> indices;
  for (const c10::IValue& each : argument.toListRef()) {
    if (!each.isTensor()) {
      indices.push_back(std::nullopt);
    } else {
      indices.push_back(is_mask(each.toTensor()) ? other_elements(each.toTensor(), meaning, change)
                                                 : each.toTensor());
    }
  }
  return indices;
}

}  // namespace stagecraft
