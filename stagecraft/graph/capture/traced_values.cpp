#include "stagecraft/graph/capture/traced_values.h"

#include <utility>

#include "stagecraft/base/check.h"
#include "stagecraft/graph/capture/trace.h"

namespace stagecraft {

const TracedValues::Entry* TracedValues::find(const at::Tensor& tensor) const {
  const auto found = by_impl_.find(tensor.unsafeGetTensorImpl());
  return found == by_impl_.end() ? nullptr : &found->second;
}

TracedValues::Storage* TracedValues::find_storage(const at::Tensor& tensor) {
  if (!tensor.unsafeGetTensorImpl()->has_storage()) return nullptr;
  c10::StorageImpl* impl = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  const auto found = storages_.find(impl);
  return found == storages_.end() ? nullptr : &found->second;
}

TracedValues::Storage* TracedValues::note_storage(const at::Tensor& tensor) {
  if (!tensor.unsafeGetTensorImpl()->has_storage()) return nullptr;
  const c10::Storage& storage = tensor.unsafeGetTensorImpl()->unsafe_storage();
  const auto [found, is_new] = storages_.try_emplace(
      storage.unsafeGetStorageImpl(), Storage{.memory = static_cast<int32_t>(storages_.size()),
                                              .alive = storage.getWeakStorageImpl(),
                                              .is_outside = false,
                                              .latest = ValueId(-1)});
  return &found->second;
}

ValueId TracedValues::make_value(const at::Tensor& tensor, std::string name) {
  const ValueId id(parts_.values.size());
  GraphValue value;
  value.name = std::move(name);
  value.dtype = tensor.scalar_type();
  value.device = tensor.device();
  for (const int64_t size : tensor.sizes()) value.shape.emplace_back(size);
  if (Storage* storage = note_storage(tensor)) {
    value.memory = storage->memory;
    storage->latest = id;
  }
  parts_.values.push_back(std::move(value));
  Entry entry{id, c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()),
              // Noted now: a history that differs when the value is read was set outside the
              // dispatcher.
              history_of(tensor)};
  histories_.note(entry.history);
  if (tensor.unsafeGetTensorImpl()->has_storage()) {
    entry.sizes = tensor.sizes().vec();
    entry.strides = tensor.strides().vec();
    entry.offset = tensor.storage_offset();
  }
  by_impl_.insert_or_assign(tensor.unsafeGetTensorImpl(), std::move(entry));
  return id;
}

void TracedValues::add_states(const NamedTensors& tensors, GraphState::Kind kind) {
  for (const auto& [name, tensor] : tensors) {
    // A module may register an optional parameter without a tensor.
    if (!tensor.defined()) continue;
    require<CaptureError>(is_name(name), "'{}' is not a valid name for a parameter or buffer",
                          name);
    const auto found = by_impl_.find(tensor.unsafeGetTensorImpl());
    if (found != by_impl_.end()) {
      GraphState& state = parts_.states[found->second.value.position()];
      // A tied weight: one tensor under two names stays one state, with one gradient.
      state.other_names.push_back(names_.make(name));
      continue;
    }
    add_state(kind, tensor, names_.make(name));
  }
}

ValueId TracedValues::add_state(GraphState::Kind kind, const at::Tensor& tensor, std::string name) {
  const ValueId value = make_value(tensor, std::move(name));
  if (Storage* storage = find_storage(tensor)) storage->is_outside = true;
  if (!tensor.is_cpu()) saved_.save_default_generator(tensor.device());
  GraphState state;
  state.kind = kind;
  state.value = value;
  state.tensor = tensor;
  // Only these can have hooks. The number of hooks is noted before the model runs.
  if (tensor.requires_grad()) hooks_.watch(this->name(value), tensor);
  parts_.states.push_back(std::move(state));
  return value;
}

void TracedValues::bind(const at::Tensor& tensor, ValueId value) {
  by_impl_.insert_or_assign(
      tensor.unsafeGetTensorImpl(),
      Entry{value, c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()), nullptr});
}

std::optional<ValueId> TracedValues::find_same(const at::Tensor& tensor) {
  const Storage* storage = find_storage(tensor);
  std::optional<ValueId> same;
  if (storage == nullptr) return same;
  for (const auto& [impl, entry] : by_impl_) {
    if (memory(entry.value) != storage->memory) continue;
    const GraphValue& value = parts_.values[entry.value];
    // Tensor::data() makes a new TensorImpl without a call of the dispatcher, so only the place in
    // memory tells which value it is.
    const bool is_same =
        entry.offset == tensor.storage_offset() && tensor.sizes().equals(entry.sizes) &&
        tensor.strides().equals(entry.strides) && value.dtype == tensor.scalar_type();
    if (is_same && (!same || same->value() < entry.value.value())) same = entry.value;
  }
  return same;
}

void TracedValues::save_before_change(const c10::IValue& given) {
  if (given.isList()) {
    for (const c10::IValue& each : given.toListRef()) save_before_change(each);
    return;
  }
  if (!given.isTensor() || !given.toTensor().defined()) return;
  const Storage* storage = find_storage(given.toTensor());
  if (storage == nullptr || !storage->is_outside) return;
  for (const GraphState& state : parts_.states) {
    // The operator may write through a view. All states in that memory change then.
    if (memory(state.value) == storage->memory) saved_.save(state.tensor);
  }
}

void TracedValues::rebind_states(const std::vector<c10::IValue>& given,
                                 const torch::jit::Stack& stack, std::size_t first_result) {
  for (const c10::IValue& argument : given) {
    if (!argument.isTensor() || !argument.toTensor().defined()) continue;
    const at::Tensor& tensor = argument.toTensor();
    for (std::size_t i = first_result; i < stack.size(); ++i) {
      if (!stack[i].isTensor() || !stack[i].toTensor().is_same(tensor)) continue;
      for (const GraphState& state : parts_.states) {
        if (state.tensor.is_same(tensor)) {
          by_impl_.at(tensor.unsafeGetTensorImpl()).value = state.value;
        }
      }
    }
  }
}

void TracedValues::collect_memory(const c10::IValue& value, std::unordered_set<int32_t>& memory) {
  if (value.isTensor() && value.toTensor().defined()) {
    if (const Storage* storage = find_storage(value.toTensor())) memory.insert(storage->memory);
  } else if (value.isTensorList()) {
    for (const c10::IValue& each : value.toListRef()) collect_memory(each, memory);
  }
}

std::optional<ValueId> TracedValues::freeze(ValueId value) {
  for (const auto& [impl, entry] : by_impl_) {
    if (entry.value != value) continue;
    const auto alive = entry.alive.lock();
    // The elements are gone with the tensor.
    if (alive.get() == nullptr) break;
    const at::Tensor tensor = at::Tensor(alive).detach().clone(at::MemoryFormat::Preserve);
    const ValueId constant =
        add_state(GraphState::Kind::kConstant, tensor, names_.make("constant_0"));
    by_impl_.at(impl).value = constant;
    return constant;
  }
  return std::nullopt;
}

}  // namespace stagecraft
