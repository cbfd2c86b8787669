#include "stagecraft/graph/capture/trace.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>

#include <ATen/core/stack.h>
#include <c10/core/GradMode.h>
#include <c10/core/TensorImpl.h>

#include "stagecraft/base/check.h"
#include "stagecraft/graph/capture/element_shapes.h"
#include "stagecraft/graph/capture/history.h"
#include "stagecraft/graph/capture/tracer.h"
#include "stagecraft/graph/effects.h"
#include "stagecraft/graph/names.h"
#include "stagecraft/graph/op_types.h"
#include "stagecraft/graph/run/run_mode.h"
#include "stagecraft/graph/run/saved_state.h"
#include "stagecraft/tree/describe.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {

namespace {

/// Operators that return something else than tensors and read no elements to do so.
constexpr std::array<std::string_view, 26> kMetadataOperators = {
    "aten::is_same_size",   "aten::result_type",
    "aten::can_cast",       "aten::is_floating_point",
    "aten::is_complex",     "aten::is_signed",
    "aten::is_neg",         "aten::is_conj",
    "aten::is_inference",   "aten::is_pinned",
    "aten::is_set_to",      "aten::size",
    "aten::stride",         "aten::sym_size",
    "aten::sym_stride",     "aten::sym_numel",
    "aten::is_leaf",        "aten::output_nr",
    "aten::retains_grad",   "aten::_version",
    "aten::dense_dim",      "aten::sparse_dim",
    "aten::is_coalesced",   "aten::sym_storage_offset",
    "aten::_is_zerotensor", "aten::cudnn_is_acceptable",
};

constexpr std::array<std::string_view, 6> kUninitialised = {
    "aten::empty",     "aten::empty_like",        "aten::empty_strided",
    "aten::new_empty", "aten::new_empty_strided", "aten::empty_permuted"};

std::string module_of(std::string_view parameter) {
  const std::size_t dot = parameter.rfind('.');
  return dot == std::string_view::npos ? std::string() : std::string(parameter.substr(0, dot));
}

}  // namespace

class Tracer::Impl {
 public:
  Impl(const StageBody& model, const TraceOptions& options) : options_(options) {
    saved_.save_default_generator(c10::kCPU);
    add_states(model.parameters, GraphState::Kind::kParameter);
    add_states(model.buffers, GraphState::Kind::kBuffer);
  }

  /// What the model is called with in the place of `arguments`.
  Arguments take_inputs(const Arguments& arguments) {
    Arguments given;
    std::vector<c10::IValue> args;
    std::vector<std::pair<std::string, c10::IValue>> kwargs;
    auto add = [&](const std::string& path, const c10::IValue& leaf) {
      return add_input(path, leaf);
    };
    for (std::size_t i = 0; i < arguments.args.size(); ++i) {
      given.args.push_back(tree::map_with_path(arguments.args[i], fmt::format("arg{}", i), add));
      args.push_back(given.args.back());
    }
    for (const auto& [name, value] : arguments.kwargs) {
      c10::IValue mine = tree::map_with_path(value, name, add);
      kwargs.emplace_back(name, mine);
      given.kwargs.set(name, std::move(mine));
    }
    parts_.args = tree::flatten(tree::tuple(std::move(args))).spec;
    parts_.kwargs = tree::flatten(tree::dict(std::move(kwargs))).spec;
    return given;
  }

  void take_output(const c10::IValue& output) {
    where_ = "the output of the model";
    tree::Flat flat = tree::flatten(output, "output");
    parts_.output = flat.spec;
    for (const c10::IValue& leaf : flat.leaves) {
      parts_.outputs.push_back(convert(leaf, c10::AnyType::get(), "output"));
    }
    for (Argument& result : parts_.outputs) read_uninitialised(result, {});
    if (const auto problem = histories_.find_problem(flat.leaves)) fail(*problem);
  }

  void use_other_elements(ElementChange change) { change_ = change; }

  void check_parameters() {
    const auto name = hooks_.take_new();
    if (!name) return;
    throw CaptureError(
        fmt::format("a hook was put on %{} inside the forward; put it there once, outside", *name));
  }

  GraphParts finish() { return std::move(parts_); }

  void enter_scope(const std::string& name) {
    require<ArgumentError>(is_name(name), "scope: expected letters, digits, '_' and '.', got '{}'",
                           name);
    scopes_.push_back(scopes_.empty() ? name : scopes_.back() + "." + name);
  }
  void leave_scope() { scopes_.pop_back(); }

  void record(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
    const c10::FunctionSchema& schema = op.schema();
    where_ = toString(op.operator_name());
    if (schema.name() == "aten::equal" && answer_equal(stack)) return;
    if (reads_back(schema)) {
      if (std::ranges::count(kMetadataOperators, schema.name()) > 0) return op.callBoxed(stack);
      fail(fmt::format(
          "it reads a value back to the host, which a graph would freeze as it is now{}",
          schema.name() == "aten::equal"
              ? "; where different tensors may count as unequal, as in the attention of torch::nn, "
                "set CaptureOptions::equal_by_identity"
              : ""));
    }
    GraphNode node;
    node.op = op.operator_name();
    node.is_no_grad = !c10::GradMode::is_enabled();
    node.autocast = current_autocast();
    if (!scopes_.empty()) node.scope = scopes_.back();
    const std::size_t count = schema.arguments().size();
    const std::vector<c10::IValue> given(stack.end() - static_cast<std::ptrdiff_t>(count),
                                         stack.end());
    for (std::size_t i = 0; i < count; ++i) {
      const c10::Argument& formal = schema.arguments()[i];
      node.arguments.push_back(convert(given[i], formal.real_type(), formal.name()));
    }
    const auto written = written_arguments(schema, node.arguments);
    for (const std::size_t i : written) save_before_change(given[i]);
    call(op, node, stack);

    where_ = toString(op.operator_name());
    const std::size_t returned = schema.returns().size();
    std::unordered_set<int32_t> result_memory;
    const std::size_t first_result = stack.size() - returned;
    for (std::size_t i = 0; i < returned; ++i) note_memory(stack[first_result + i], result_memory);
    for (std::size_t i = 0; i < count; ++i) {
      if (std::ranges::count(written, i) > 0) {
        for_each_value(node.arguments[i], [&](ValueId v) { uninitialised_.erase(memory(v)); });
      } else if (reads_elements(schema.name())) {
        read_uninitialised(node.arguments[i], result_memory);
      }
    }
    node.name = names_.of_operator(schema.name());
    int result = 0;
    for (std::size_t i = 0; i < returned; ++i) {
      node.results.push_back(bind(stack[first_result + i], node, result));
    }
    if (std::ranges::count(kUninitialised, schema.name()) > 0) {
      for_each_value(node.results.front(), [&](ValueId v) { uninitialised_.insert(memory(v)); });
    }
    if (written.empty()) rebind_states(given, stack, first_result);
    parts_.nodes.push_back(std::move(node));
  }

  [[noreturn]] void fail(const std::string& message) const {
    std::string place = scopes_.empty() ? "" : fmt::format(" in {}", scopes_.back());
    if (!last_module_) {
      place += " before the first module that reads a parameter";
    } else {
      place += last_module_->empty() ? std::string(" in or behind the model itself")
                                     : fmt::format(" in or behind module {}", *last_module_);
    }
    throw CaptureError(fmt::format("{}{}: {}", where_, place, message));
  }

 private:
  struct Entry {
    ValueId value;
    c10::weak_intrusive_ptr<c10::TensorImpl> alive;  // keeps the address from being used again
    torch::autograd::Node* history = nullptr;
    std::vector<int64_t> sizes = {};  // of what it looks at, to know it again
    std::vector<int64_t> strides = {};
    int64_t offset = 0;
  };
  struct Storage {
    int32_t memory = 0;
    c10::weak_intrusive_ptr<c10::StorageImpl> alive;
    bool is_outside = false;
    ValueId latest;
  };

  // Values ----------------------------------------------------------------------------------------

  int32_t memory(ValueId value) const { return parts_.values[value.position()].memory; }

  Storage* storage_of(const at::Tensor& tensor) {
    if (!tensor.unsafeGetTensorImpl()->has_storage()) return nullptr;
    c10::StorageImpl* impl = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    const auto found = storages_.find(impl);
    return found == storages_.end() ? nullptr : &found->second;
  }

  Storage* note_storage(const at::Tensor& tensor) {
    if (!tensor.unsafeGetTensorImpl()->has_storage()) return nullptr;
    const c10::Storage& storage = tensor.unsafeGetTensorImpl()->unsafe_storage();
    const auto [found, is_new] = storages_.try_emplace(
        storage.unsafeGetStorageImpl(), Storage{.memory = static_cast<int32_t>(storages_.size()),
                                                .alive = storage.getWeakStorageImpl(),
                                                .is_outside = false,
                                                .latest = ValueId(-1)});
    return &found->second;
  }

  ValueId make_value(const at::Tensor& tensor, std::string name) {
    const ValueId id(static_cast<int32_t>(parts_.values.size()));
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

  void add_states(const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                  GraphState::Kind kind) {
    for (const auto& [name, tensor] : tensors) {
      if (!tensor.defined()) continue;
      require<CaptureError>(is_name(name), "'{}' is no name for a parameter or buffer", name);
      const auto found = by_impl_.find(tensor.unsafeGetTensorImpl());
      if (found != by_impl_.end()) {
        GraphState& state = parts_.states[found->second.value.position()];
        state.other_names.push_back(names_.make(name));
        continue;
      }
      add_state(kind, tensor, names_.make(name));
    }
  }

  ValueId add_state(GraphState::Kind kind, const at::Tensor& tensor, std::string name) {
    const ValueId value = make_value(tensor, std::move(name));
    if (Storage* storage = storage_of(tensor)) storage->is_outside = true;
    if (!tensor.is_cpu()) saved_.save_default_generator(tensor.device());
    GraphState state;
    state.kind = kind;
    state.value = value;
    state.tensor = tensor;
    if (tensor.requires_grad()) hooks_.watch(parts_.values.back().name, tensor);
    parts_.states.push_back(std::move(state));
    return value;
  }

  c10::IValue add_input(const std::string& path, const c10::IValue& leaf) {
    if (!leaf.isTensor() || !leaf.toTensor().defined()) {
      parts_.inputs.push_back(Argument::fixed(leaf));
      return leaf;
    }
    at::Tensor mine = leaf.toTensor().detach().clone(at::MemoryFormat::Preserve);
    if (options_.has_input_grads && (mine.is_floating_point() || mine.is_complex())) {
      // Not a leaf, so that it may be changed in place.
      mine = mine.requires_grad_().clone(at::MemoryFormat::Preserve);
    }
    if (!mine.is_cpu()) saved_.save_default_generator(mine.device());
    const ValueId value = make_value(mine, names_.make(readable(path)));
    if (Storage* storage = storage_of(mine)) storage->is_outside = true;
    kept_.push_back(mine);
    parts_.inputs.push_back(value);
    return mine;
  }

  /// arg0["mask"][1] to arg0.mask.1
  static std::string readable(const std::string& path) {
    std::string name;
    for (const char c : path) {
      if (c == '[') name += '.';
      if (c != '[' && c != ']' && c != '"') name += c;
    }
    return name;
  }

  // Calls -----------------------------------------------------------------------------------------

  // Attention of torch::nn asks whether query, key and value are one tensor.
  bool answer_equal(torch::jit::Stack& stack) const {
    const at::Tensor& a = stack[stack.size() - 2].toTensor();
    const at::Tensor& b = stack[stack.size() - 1].toTensor();
    const bool is_same = a.is_same(b);
    if (!is_same && !options_.equal_by_identity) return false;
    torch::jit::drop(stack, 2);
    stack.emplace_back(is_same);
    return true;
  }

  // Of a tensor that was not written yet, empty_like and its kind read the shape alone.
  static bool reads_elements(std::string_view op) {
    return !op.ends_with("_like") && !op.starts_with("aten::new_");
  }

  void call(const c10::OperatorHandle& op, const GraphNode& node, torch::jit::Stack& stack) {
    if (!change_) return op.callBoxed(stack);
    if (const auto decides = shape_deciding_argument(op.schema())) {
      c10::IValue& argument = stack[stack.size() - op.schema().arguments().size() + *decides];
      argument = with_other_elements(argument, op.schema(), *change_);
    }
    try {
      op.callBoxed(stack);
    } catch (...) {
      parts_.nodes.push_back(node);  // with what it was called
      throw;
    }
  }

  // Arguments -------------------------------------------------------------------------------------

  static bool reads_back(const c10::FunctionSchema& schema) {
    const auto is_tensor = [](const c10::Argument& argument) {
      return takes_tensors(argument.real_type());
    };
    return std::ranges::any_of(schema.arguments(), is_tensor) &&
           !std::ranges::all_of(schema.returns(), is_tensor);
  }

  Argument convert(const c10::IValue& given, const c10::TypePtr& type, std::string_view name) {
    if (given.isTensor()) {
      if (given.toTensor().defined()) return value_of(given.toTensor());
      return type->kind() == c10::TypeKind::OptionalType ? Argument() : Argument::fixed(given);
    }
    if (given.isGenerator()) saved_.save(given.toGenerator());
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
    fail(fmt::format("argument '{}' is of a kind that a graph cannot hold: {}", name,
                     describe(given)));
  }

  ValueId value_of(const at::Tensor& tensor) {
    const auto found = by_impl_.find(tensor.unsafeGetTensorImpl());
    if (found == by_impl_.end()) return adopt(tensor);
    check_history(found->second, tensor);
    note_module(found->second.value);
    return found->second.value;
  }

  void note_module(ValueId value) {
    if (value.value() < static_cast<int32_t>(parts_.states.size()) &&
        parts_.states[value.position()].value == value) {
      last_module_ = module_of(parts_.values[value.position()].name);
    }
  }

  // A custom function runs its operators with gradients off and then gives its results a history of
  // its own.
  void check_history(const Entry& entry, const at::Tensor& tensor) const {
    torch::autograd::Node* history = history_of(tensor);
    if (history == nullptr) return;
    const auto problem = histories_.find_problem(*history, history != entry.history);
    if (problem) fail(*problem);
  }

  // A tensor that no operator made here.
  ValueId adopt(const at::Tensor& tensor) {
    Storage* storage = storage_of(tensor);
    if (storage != nullptr && storage->latest.value() >= 0) return detached(tensor, *storage);
    if (tensor.requires_grad() && !tensor.is_leaf()) {
      fail(
          "it reads a tensor that was computed from parameters outside of the model; compute it "
          "inside, or detach it");
    }
    at::Tensor kept = tensor;
    // Memory that somebody else owns (from_blob) may be gone when the graph runs.
    if (tensor.unsafeGetTensorImpl()->has_storage() &&
        tensor.unsafeGetTensorImpl()->unsafe_storage().data_ptr().get_context() == nullptr) {
      kept = tensor.detach().clone(at::MemoryFormat::Preserve);
    }
    const bool is_parameter = tensor.requires_grad();
    const ValueId value =
        add_state(is_parameter ? GraphState::Kind::kParameter : GraphState::Kind::kConstant, kept,
                  names_.make(is_parameter ? "parameter_0" : "constant_0"));
    if (!kept.is_same(tensor)) bind_also(tensor, value);
    kept_.push_back(tensor);
    return value;
  }

  void bind_also(const at::Tensor& tensor, ValueId value) {
    by_impl_.insert_or_assign(
        tensor.unsafeGetTensorImpl(),
        Entry{value, c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()), nullptr});
  }

  // The same elements under another handle and without history, as Tensor::data() gives it.
  ValueId detached(const at::Tensor& tensor, const Storage& storage) {
    std::optional<ValueId> same;
    for (const auto& [impl, entry] : by_impl_) {
      if (memory(entry.value) != storage.memory) continue;
      const GraphValue& value = parts_.values[entry.value.position()];
      const bool is_same =
          entry.offset == tensor.storage_offset() && tensor.sizes().equals(entry.sizes) &&
          tensor.strides().equals(entry.strides) && value.dtype == tensor.scalar_type();
      if (is_same && (!same || same->value() < entry.value.value())) same = entry.value;
    }
    if (!same || tensor.requires_grad()) {
      fail(fmt::format(
          "it reads a tensor that shares memory with %{}, but that no operator made of it",
          parts_.values[storage.latest.position()].name));
    }
    GraphNode node;
    node.op = {"aten::detach", ""};
    node.name = names_.of_operator("detach");
    if (!scopes_.empty()) node.scope = scopes_.back();
    node.arguments.emplace_back(*same);
    const ValueId value = make_value(tensor, node.name);
    node.results.emplace_back(value);
    parts_.nodes.push_back(std::move(node));
    return value;
  }

  void save_before_change(const c10::IValue& given) {
    if (given.isList()) {
      for (const c10::IValue& each : given.toListRef()) save_before_change(each);
      return;
    }
    if (!given.isTensor() || !given.toTensor().defined()) return;
    const Storage* storage = storage_of(given.toTensor());
    if (storage == nullptr || !storage->is_outside) return;
    for (const GraphState& state : parts_.states) {
      if (memory(state.value) == storage->memory) saved_.save(state.tensor);
    }
  }

  // Results ---------------------------------------------------------------------------------------

  // An operator that has nothing to do gives its argument back, as to() does. A state stays a state
  // then, which every stage can hold for itself.
  void rebind_states(const std::vector<c10::IValue>& given, const torch::jit::Stack& stack,
                     std::size_t first_result) {
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

  void note_memory(const c10::IValue& value, std::unordered_set<int32_t>& memory) {
    if (value.isTensor() && value.toTensor().defined()) {
      if (const Storage* storage = storage_of(value.toTensor())) memory.insert(storage->memory);
    } else if (value.isTensorList()) {
      for (const c10::IValue& each : value.toListRef()) note_memory(each, memory);
    }
  }

  // Elements of a tensor that was made without any, by pointer: they become a constant.
  void read_uninitialised(Argument& argument, const std::unordered_set<int32_t>& result_memory) {
    argument = map_values(argument, [&](ValueId value) -> Argument {
      const int32_t shared = memory(value);
      if (!uninitialised_.contains(shared) || result_memory.contains(shared)) return value;
      return constant_of(value);
    });
  }

  ValueId constant_of(ValueId value) {
    for (const auto& [impl, entry] : by_impl_) {
      if (entry.value != value) continue;
      const auto alive = entry.alive.lock();
      if (alive.get() == nullptr) break;
      const at::Tensor tensor = at::Tensor(alive).detach().clone(at::MemoryFormat::Preserve);
      const ValueId constant =
          add_state(GraphState::Kind::kConstant, tensor, names_.make("constant_0"));
      by_impl_.at(impl).value = constant;
      return constant;
    }
    fail(fmt::format("%{} is read but was never written", parts_.values[value.position()].name));
  }

  Argument bind(const c10::IValue& returned, const GraphNode& node, int& number) {
    if (returned.isTensor()) {
      const at::Tensor& tensor = returned.toTensor();
      if (!tensor.defined()) return {};
      std::string name = node.name;
      if (number++ > 0) name = names_.make(fmt::format("{}.{}", node.name, number - 1));
      return make_value(tensor, std::move(name));
    }
    if (!returned.isTensorList()) return {};
    Argument::List list;
    for (const c10::IValue& each : returned.toListRef()) list.push_back(bind(each, node, number));
    return list;
  }

  GraphParts parts_;
  SavedState saved_;
  std::vector<at::Tensor> kept_;
  std::unordered_map<c10::TensorImpl*, Entry> by_impl_;
  std::unordered_map<c10::StorageImpl*, Storage> storages_;
  std::unordered_set<int32_t> uninitialised_;
  HistoryCheck histories_;
  ParameterHooks hooks_;
  TraceOptions options_;
  std::optional<ElementChange> change_;
  UniqueNames names_;
  std::vector<std::string> scopes_;
  std::string where_;
  std::optional<std::string> last_module_;  // empty for the outermost
};

Tracer::Tracer(const StageBody& model, const TraceOptions& options)
    : impl_(std::make_unique<Impl>(model, options)) {}
Tracer::~Tracer() = default;

void Tracer::record(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  impl_->record(op, stack);
}
void Tracer::enter_scope(const std::string& name) {
  impl_->enter_scope(name);
}
void Tracer::leave_scope() {
  impl_->leave_scope();
}

GraphParts trace(const StageBody& model, const Arguments& arguments, const TraceOptions& options) {
  const c10::AutoGradMode with_grad(true);
  Tracer tracer(model, options);
  const Arguments given = tracer.impl_->take_inputs(arguments);
  c10::IValue output;
  {
    const TracerScope on(tracer);
    output = model.forward(given.args, given.kwargs);
  }
  tracer.impl_->check_parameters();
  tracer.impl_->take_output(output);
  return tracer.impl_->finish();
}

OtherElements trace_with_other_elements(const StageBody& model, const Arguments& arguments,
                                        ElementChange change, const TraceOptions& options) {
  const c10::AutoGradMode with_grad(true);
  Tracer tracer(model, options);
  tracer.impl_->use_other_elements(change);
  const Arguments given = tracer.impl_->take_inputs(arguments);
  OtherElements result;
  try {
    const TracerScope on(tracer);
    model.forward(given.args, given.kwargs);
  } catch (const std::exception& error) {
    result.failure = message_of(error);
  }
  result.parts = tracer.impl_->finish();
  return result;
}

}  // namespace stagecraft
