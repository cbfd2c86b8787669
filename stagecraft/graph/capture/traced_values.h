#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include "stagecraft/graph/capture/history.h"
#include "stagecraft/graph/graph.h"
#include "stagecraft/graph/names.h"
#include "stagecraft/graph/run/saved_state.h"
#include "stagecraft/tree/stage_body.h"

namespace stagecraft {

/// The values and states of a trace: which value of the graph a tensor of the running model is, and
/// which values share memory. A tensor is identified by its TensorImpl, which is held weakly: a
/// strong reference would make torch::zeros and similar functions copy their tensor.
class TracedValues {
 public:
  /// What is known about a tensor.
  struct Entry {
    ValueId value;
    c10::weak_intrusive_ptr<c10::TensorImpl> alive;  ///< keeps the address from being used again
    torch::autograd::Node* history = nullptr;
    std::vector<int64_t> sizes = {};  ///< sizes, strides and offset identify a view
    std::vector<int64_t> strides = {};
    int64_t offset = 0;
  };
  /// What is known about a storage.
  struct Storage {
    int32_t memory = 0;
    c10::weak_intrusive_ptr<c10::StorageImpl> alive;
    bool is_outside = false;  ///< the storage belongs to a state or an input
    ValueId latest;
  };

  /// Adds values and states to `parts`.
  explicit TracedValues(GraphParts& parts) : parts_(parts) {}

  UniqueNames& names() { return names_; }
  SavedState& saved() { return saved_; }
  const HistoryCheck& histories() const { return histories_; }
  ParameterHooks& hooks() { return hooks_; }
  const std::string& name(ValueId value) const { return parts_.values[value].name; }
  int32_t memory(ValueId value) const { return parts_.values[value].memory; }

  /// Null if the tensor, or its memory, is not known.
  const Entry* find(const at::Tensor& tensor) const;
  Storage* find_storage(const at::Tensor& tensor);

  /// A new value for the tensor. A value that the tensor had before is not read again.
  ValueId make_value(const at::Tensor& tensor, std::string name);
  /// Binds a further tensor to a value.
  void bind(const at::Tensor& tensor, ValueId value);
  /// Keeps the tensor alive until the end of the trace.
  void keep(const at::Tensor& tensor) { kept_.push_back(tensor); }
  /// A tensor under several names becomes one state. CaptureError for a name that is not valid.
  void add_states(const NamedTensors& tensors, GraphState::Kind kind);
  ValueId add_state(GraphState::Kind kind, const at::Tensor& tensor, std::string name);

  /// The latest value with the same elements: the same memory, offset, sizes, strides and dtype.
  std::optional<ValueId> find_same(const at::Tensor& tensor);
  /// Copies the elements that a value has now into a constant. Nothing if its tensor is gone.
  std::optional<ValueId> freeze(ValueId value);
  /// Saves the states that share memory with the tensors in `given`, before an operator changes
  /// them.
  void save_before_change(const c10::IValue& given);
  /// Some operators return their argument if there is nothing to do, as to() does. If the argument
  /// is a state, the result stays that state, so that every stage can hold it.
  void rebind_states(const std::vector<c10::IValue>& given, const torch::jit::Stack& stack,
                     std::size_t first_result);
  /// Adds the numbers of the memory of the tensors in `value`.
  void collect_memory(const c10::IValue& value, std::unordered_set<int32_t>& memory);

 private:
  Storage* note_storage(const at::Tensor& tensor);

  GraphParts& parts_;
  SavedState saved_;
  std::vector<at::Tensor> kept_;
  std::unordered_map<c10::TensorImpl*, Entry> by_impl_;
  std::unordered_map<c10::StorageImpl*, Storage> storages_;
  HistoryCheck histories_;
  ParameterHooks hooks_;
  UniqueNames names_;
};

}  // namespace stagecraft
