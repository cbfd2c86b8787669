#include "stagecraft/graph/capture/traced_arguments.h"

#include <cstdint>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "stagecraft/graph/capture/history.h"
#include "stagecraft/graph/op_types.h"
#include "stagecraft/tree/describe.h"

namespace stagecraft {

Argument TracedArguments::convert(const c10::IValue& given, const c10::TypePtr& type,
                                  std::string_view name) {
  if (given.isTensor()) {
    if (given.toTensor().defined()) return value_of(given.toTensor());
    return type->kind() == c10::TypeKind::OptionalType ? Argument() : Argument::fixed(given);
  }
  if (given.isGenerator()) values_.saved().save(given.toGenerator());
  if (given.isNone() || given.isScalar() || given.isString() || given.isDevice() ||
      given.isGenerator() || given.isIntList() || given.isBoolList() || given.isDoubleList()) {
    return Argument::fixed(given);
  }
  if (given.isList()) {
    Argument::List list;
    bool has_tensors = takes_tensors(type);
    for (const c10::IValue& each : given.toListRef()) {
      has_tensors |= each.isTensor();
      list.push_back(convert(each, c10::OptionalType::create(c10::TensorType::get()), name));
    }
    if (has_tensors) return list;
    return Argument::fixed(given);
  }
  place_.fail(fmt::format("argument '{}' is of a kind that a graph cannot hold: {}", name,
                          describe(given)));
}

ValueId TracedArguments::value_of(const at::Tensor& tensor) {
  const TracedValues::Entry* known = values_.find(tensor);
  if (known == nullptr) return adopt(tensor);
  check_history(*known, tensor);
  note_module(known->value);
  return known->value;
}

void TracedArguments::note_module(ValueId value) {
  if (value.value() < static_cast<int32_t>(parts_.states.size()) &&
      parts_.states[value.position()].value == value) {
    place_.note_state(values_.name(value));
  }
}

// A custom autograd function runs its operators without gradients, and then sets its own history
// on the results.
void TracedArguments::check_history(const TracedValues::Entry& entry,
                                    const at::Tensor& tensor) const {
  torch::autograd::Node* history = history_of(tensor);
  if (history == nullptr) return;
  const auto problem = values_.histories().find_problem(*history, history != entry.history);
  if (problem) place_.fail(*problem);
}

// Makes a state or a value for a tensor that no recorded operator made.
ValueId TracedArguments::adopt(const at::Tensor& tensor) {
  const TracedValues::Storage* storage = values_.find_storage(tensor);
  if (storage != nullptr && storage->latest.value() >= 0) return detached(tensor, storage->latest);
  // As a constant it would lose its history, and the parameters outside would get no gradients.
  if (tensor.requires_grad() && !tensor.is_leaf()) {
    place_.fail(
        "it reads a tensor that was computed from parameters outside of the model; compute it "
        "inside, or detach it");
  }
  at::Tensor kept = tensor;
  // Memory that the tensor does not own (from_blob) may be gone when the graph runs.
  if (tensor.unsafeGetTensorImpl()->has_storage() &&
      tensor.unsafeGetTensorImpl()->unsafe_storage().data_ptr().get_context() == nullptr) {
    kept = tensor.detach().clone(at::MemoryFormat::Preserve);
  }
  // A leaf that requires gradients and was not named: the model trains it, so it must not become
  // a constant.
  const bool is_parameter = tensor.requires_grad();
  const ValueId value =
      values_.add_state(is_parameter ? GraphState::Kind::kParameter : GraphState::Kind::kConstant,
                        kept, values_.names().make(is_parameter ? "parameter_0" : "constant_0"));
  // The model reads the original, perhaps again. It must be the same state then.
  if (!kept.is_same(tensor)) values_.bind(tensor, value);
  values_.keep(tensor);
  return value;
}

// Tensor::data() returns a different tensor with the same elements and without history, and calls
// no operator. It is recorded as a detach.
ValueId TracedArguments::detached(const at::Tensor& tensor, ValueId latest) {
  const std::optional<ValueId> same = values_.find_same(tensor);
  // Only a detach is known to make such a tensor.
  if (!same || tensor.requires_grad()) {
    place_.fail(fmt::format(
        "it reads a tensor that shares memory with %{}, but was not made from it by an operator",
        values_.name(latest)));
  }
  GraphNode node;
  node.op = {"aten::detach", ""};
  node.name = values_.names().of_operator("detach");
  node.scope = place_.scope();
  node.arguments.emplace_back(*same);
  const ValueId value = values_.make_value(tensor, node.name);
  node.results.emplace_back(value);
  parts_.nodes.push_back(std::move(node));
  return value;
}

}  // namespace stagecraft
