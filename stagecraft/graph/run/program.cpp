#include "stagecraft/graph/run/program.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include <ATen/ScalarOps.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/stack.h>
#include <c10/core/GradMode.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/error.h"
#include "stagecraft/graph/op_types.h"
#include "stagecraft/graph/run/input_binding.h"
#include "stagecraft/graph/run/run_mode.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {

namespace {

/// One argument of a call, prepared so that a run only fills in values and sizes.
struct Operand {
  enum class Kind : uint8_t {
    kFixed,
    kValue,
    kLastValue,
    kSize,
    kSizeTensor,  // a number for an argument that is a tensor
    kInts,
    kTensors,
    kMaybeTensors,
    kAny
  };

  Kind kind = Kind::kFixed;
  c10::IValue fixed;
  std::size_t slot = 0;
  SizeExpr size;
  bool is_truth = false;  // the size is a comparison, and the operator does not take an int
  std::vector<Operand> elements;
};

/// The sizes that become known after a node.
struct Learned {
  struct Measure {
    std::size_t size = 0;
    std::size_t slot = 0;
    int32_t dim = -1;
  };

  std::vector<Measure> measures;
  std::vector<std::size_t> rules;  // sizes that are computed from the measured sizes
};

struct Call {
  c10::OperatorHandle op;
  std::size_t node = 0;
  std::vector<Operand> operands;
  std::vector<Operand> results;  // kValue, kTensors, or kFixed if the result is not read
  bool is_random = false;
  Learned learned = {};
  std::vector<GraphProgram> branches = {};
};

using Kind = Operand::Kind;

/// A number as a tensor, as Python passes it: it does not count for the dtype of the result.
at::Tensor wrapped_number(const c10::Scalar& number) {
  at::Tensor tensor = c10::scalar_to_tensor(number);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

/// The kind of list that an operator takes.
Kind list_kind(const c10::TypePtr& type) {
  const c10::TypePtr element = element_type(type);
  if (element == nullptr) return Kind::kAny;
  if (element->kind() == c10::TypeKind::TensorType) return Kind::kTensors;
  if (is_of(element, c10::TypeKind::TensorType)) return Kind::kMaybeTensors;
  return takes_integer(element) ? Kind::kInts : Kind::kAny;
}

}  // namespace

class GraphProgram::Impl {
 public:
  explicit Impl(Graph graph) : graph_(std::move(graph)), binding_(graph_) {
    lay_out();
    find_measures();
    find_last_uses();
  }

  const Graph& graph() const { return graph_; }

  c10::IValue run(const Args& args, const Kwargs& kwargs, const RunOptions& options) const {
    const GraphParts& parts = graph_.parts();
    std::vector<c10::IValue> slots(parts.values.size());
    std::vector<c10::IValue> leaves = binding_.leaves(args, kwargs);
    std::vector<int64_t> sizes = binding_.sizes(leaves);
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      if (const ValueId* value = parts.inputs[i].value())
        slots[slot(*value)] = std::move(leaves[i]);
    }
    for (const GraphState& state : parts.states) slots[slot(state.value)] = state.tensor;
    // An input that no node reads would otherwise live until the end of the run.
    for (const std::size_t unread : never_read_) slots[unread] = {};

    torch::jit::Stack stack;
    RunMode mode;
    for (const Call& call : calls_) {
      const GraphNode& node = parts.nodes[call.node];
      mode.enter(node);
      try {
        // One stack for all calls: it keeps its capacity.
        stack.clear();
        for (const Operand& operand : call.operands) stack.push_back(make(operand, slots, sizes));
        run_call(call, node, stack, options);
        for (std::size_t i = 0; i < call.results.size(); ++i) {
          take(call.results[i], stack[i], slots);
        }
        if (!call.learned.measures.empty()) learn(call.learned, slots, sizes);
      } catch (const std::exception&) {
        throw GraphError(fmt::format("{} ({}{}): {}", node.name, toString(node.op),
                                     node.scope.empty() ? "" : " in " + node.scope,
                                     describe(std::current_exception())));
      }
    }
    mode.leave();
    std::vector<c10::IValue> outputs;
    outputs.reserve(outputs_.size());
    for (const Operand& operand : outputs_) outputs.push_back(make(operand, slots, sizes));
    if (parts.output.is_leaf()) return std::move(outputs.front());
    return tree::unflatten(parts.output, std::move(outputs));
  }

 private:
  static std::size_t slot(ValueId value) { return value.position(); }

  static void run_call(const Call& call, const GraphNode& node, torch::jit::Stack& stack,
                       const RunOptions& options) {
    if (!call.branches.empty()) {
      run_branch(call, stack, options);
    } else if (call.is_random && options.around_random) {
      options.around_random(node, [&] { call.op.callBoxed(stack); });
    } else {
      call.op.callBoxed(stack);
    }
  }

  static void run_branch(const Call& call, torch::jit::Stack& stack, const RunOptions& options) {
    // Waits for the device: which operators follow depends on it.
    const bool holds = stack[0].toTensor().item().toBool();
    Args args;
    for (const at::Tensor& operand : stack[1].toTensorVector()) args.push_back(operand);
    for (const int64_t size : stack[2].toIntVector()) args.push_back(size);
    c10::List<at::Tensor> results;
    // The other branch is never run: it may be invalid for these elements, and would draw random
    // numbers.
    const c10::IValue output = call.branches[holds ? 0 : 1].run(args, {}, options);
    for (const c10::IValue& result : output.toTupleRef().elements()) {
      results.push_back(result.toTensor());
    }
    stack.clear();
    stack.emplace_back(std::move(results));
  }

  void learn(const Learned& learned, std::vector<c10::IValue>& slots,
             std::vector<int64_t>& sizes) const {
    for (const Learned::Measure& each : learned.measures) {
      const at::Tensor tensor = slots[each.slot].toTensor();
      sizes[each.size] = each.dim < 0 ? tensor.item().toLong() : tensor.size(each.dim);
    }
    for (const Learned::Measure& each : learned.measures) {
      // In a second pass: two sizes may be measured at one value.
      if (is_measured_only_[each.slot]) slots[each.slot] = {};
    }
    for (const std::size_t size : learned.rules) {
      sizes[size] = graph_.parts().sizes[size].rule->at(sizes);
    }
  }

  // Finds the call after which each measured size is known, and the sizes that follow from it.
  void find_measures() {
    const GraphParts& parts = graph_.parts();
    std::unordered_map<std::size_t, std::vector<Learned::Measure>> by_slot;
    is_measured_only_.assign(parts.values.size(), false);
    for (std::size_t i = 0; i < parts.sizes.size(); ++i) {
      if (!parts.sizes[i].measured) continue;
      const std::size_t where = slot(parts.sizes[i].measured->value);
      by_slot[where].push_back({i, where, parts.sizes[i].measured->dim});
    }
    if (by_slot.empty()) return;
    SizeSet known = known_sizes(parts);
    auto note = [&](ValueId value, Learned& learned) {
      const auto found = by_slot.find(slot(value));
      if (found == by_slot.end()) return;
      const SizeSet before = known;
      for (const Learned::Measure& each : found->second) {
        learned.measures.push_back(each);
        known |= SizeSet{1} << each.size;
      }
      // After all sizes of the value: a rule may read two of them.
      known = with_rules(parts, known);
      for (std::size_t i = 0; i < parts.sizes.size(); ++i) {
        if (parts.sizes[i].rule && ((known & ~before) >> i & 1) != 0) learned.rules.push_back(i);
      }
    };
    for (Call& call : calls_) {
      for (const Argument& result : parts.nodes[call.node].results) {
        for_each_value(result, [&](ValueId value) { note(value, call.learned); });
      }
    }
  }

  void lay_out() {
    for (std::size_t n = 0; n < graph_.parts().nodes.size(); ++n) {
      const GraphNode& node = graph_.parts().nodes[n];
      auto op = c10::Dispatcher::singleton().findSchema(node.op);
      require<GraphError>(op.has_value(), "{}: there is no operator {}", node.name,
                          toString(node.op));
      Call call{.op = *op, .node = n, .operands = {}, .results = {}, .is_random = false};
      call.is_random = op->hasTag(at::Tag::nondeterministic_seeded);
      for (const Graph& branch : node.branches) call.branches.emplace_back(branch);
      const auto& schema = op->schema();
      for (std::size_t i = 0; i < node.arguments.size(); ++i) {
        call.operands.push_back(operand(node.arguments[i], schema.arguments()[i].real_type()));
      }
      for (std::size_t i = 0; i < node.results.size(); ++i) {
        call.results.push_back(operand(node.results[i], schema.returns()[i].real_type()));
      }
      calls_.push_back(std::move(call));
    }
    for (const Argument& output : graph_.parts().outputs) {
      outputs_.push_back(operand(output, c10::AnyType::get()));
    }
  }

  Operand operand(const Argument& argument, const c10::TypePtr& type) const {
    Operand result;
    if (const ValueId* value = argument.value()) {
      result.kind = Kind::kValue;
      result.slot = slot(*value);
    } else if (const SizeExpr* size = argument.size()) {
      result.size = *size;
      const bool is_number =
          is_of(type, c10::TypeKind::IntType) || is_of(type, c10::TypeKind::SymIntType);
      // Where an int is taken, a truth value is the int 0 or 1. A Scalar or a tensor must be a
      // bool, or the dtype of the result would differ.
      result.is_truth = !is_number && is_truth(graph_.parts(), *size);
      result.kind = is_of(type, c10::TypeKind::TensorType) ? Kind::kSizeTensor : Kind::kSize;
    } else if (const Argument::List* list = argument.list()) {
      result.kind = list_kind(type);
      const c10::TypePtr element = element_type(type);
      for (const Argument& each : *list) {
        result.elements.push_back(operand(each, element ? element : c10::AnyType::get()));
      }
    } else {
      result.fixed = *argument.fixed_value();
      if (result.fixed.isScalar() && is_of(type, c10::TypeKind::TensorType)) {
        result.fixed = wrapped_number(result.fixed.toScalar());
      }
    }
    return result;
  }

  // The last reader moves a value out of its slot, so that the tensor is released as early as
  // possible. A value that is not read is never stored.
  void find_last_uses() {
    std::vector<bool> is_read(graph_.parts().values.size(), false);
    // From the end to the beginning: the first reader that is met is the last one that runs. That
    // holds within one call, too, whose operands are made in order.
    for (std::size_t i = outputs_.size(); i-- > 0;) mark(outputs_[i], is_read);
    for (std::size_t c = calls_.size(); c-- > 0;) {
      for (const Learned::Measure& each : calls_[c].learned.measures)
        keep_for_measure(each, is_read);
      // Before the operands are marked: a value that this call makes is read later or never.
      for (Operand& result : calls_[c].results) drop_unread(result, is_read);
      std::vector<Operand>& operands = calls_[c].operands;
      for (std::size_t i = operands.size(); i-- > 0;) mark(operands[i], is_read);
    }
    auto note = [&](ValueId value) {
      if (!is_read[slot(value)]) never_read_.push_back(slot(value));
    };
    for (const Argument& input : graph_.parts().inputs) for_each_value(input, note);
    for (const GraphState& state : graph_.parts().states) note(state.value);
  }

  void keep_for_measure(const Learned::Measure& measure, std::vector<bool>& is_read) {
    if (is_read[measure.slot]) return;
    is_read[measure.slot] = true;
    is_measured_only_[measure.slot] = true;
  }

  static void mark(Operand& operand, std::vector<bool>& is_read) {
    if (operand.kind == Kind::kValue && !is_read[operand.slot]) {
      is_read[operand.slot] = true;
      operand.kind = Kind::kLastValue;
    }
    for (std::size_t i = operand.elements.size(); i-- > 0;) mark(operand.elements[i], is_read);
  }

  static void drop_unread(Operand& result, const std::vector<bool>& is_read) {
    if (result.kind == Kind::kValue && !is_read[result.slot]) result.kind = Kind::kFixed;
    for (Operand& element : result.elements) drop_unread(element, is_read);
  }

  static c10::IValue make(const Operand& operand, std::vector<c10::IValue>& slots,
                          std::span<const int64_t> sizes) {
    switch (operand.kind) {
      case Kind::kFixed:
        return operand.fixed;
      case Kind::kValue:
        return slots[operand.slot];
      case Kind::kLastValue:
        // Memory is then free when the operator releases its argument, as in the model, where
        // variables end.
        return std::exchange(slots[operand.slot], c10::IValue());
      case Kind::kSize:
        if (operand.is_truth) return operand.size.at(sizes) != 0;
        return operand.size.at(sizes);
      case Kind::kSizeTensor:
        if (operand.is_truth) return wrapped_number(operand.size.at(sizes) != 0);
        return wrapped_number(operand.size.at(sizes));
      case Kind::kInts: {
        std::vector<int64_t> numbers;
        for (const Operand& element : operand.elements) {
          numbers.push_back(make(element, slots, sizes).toInt());
        }
        return numbers;
      }
      case Kind::kTensors: {
        // Boxed kernels demand the element type of the schema: a generic list would be refused.
        c10::List<at::Tensor> tensors;
        tensors.reserve(operand.elements.size());
        for (const Operand& element : operand.elements) {
          tensors.push_back(make(element, slots, sizes).toTensor());
        }
        return tensors;
      }
      case Kind::kMaybeTensors: {
        c10::List<std::optional<at::Tensor>> tensors;
        tensors.reserve(operand.elements.size());
        for (const Operand& element : operand.elements) {
          c10::IValue value = make(element, slots, sizes);
          tensors.push_back(value.isNone() ? std::nullopt : std::optional(value.toTensor()));
        }
        return tensors;
      }
      case Kind::kAny: {
        std::vector<c10::IValue> values;
        for (const Operand& element : operand.elements)
          values.push_back(make(element, slots, sizes));
        return tree::list(std::move(values));
      }
    }
    return {};
  }

  static void take(const Operand& result, c10::IValue& returned, std::vector<c10::IValue>& slots) {
    if (result.kind == Kind::kValue) {
      slots[result.slot] = std::move(returned);
    } else if (!result.elements.empty()) {
      const auto tensors = returned.toTensorVector();
      require<GraphError>(tensors.size() == result.elements.size(),
                          "expected a list of {} results, got {}", result.elements.size(),
                          tensors.size());
      for (std::size_t i = 0; i < result.elements.size(); ++i) {
        if (result.elements[i].kind == Kind::kValue) slots[result.elements[i].slot] = tensors.at(i);
      }
    }
  }

  Graph graph_;
  InputBinding binding_;
  std::vector<Call> calls_;
  std::vector<Operand> outputs_;
  std::vector<std::size_t> never_read_;
  std::vector<bool> is_measured_only_;
};

GraphProgram::GraphProgram(Graph graph) : impl_(std::make_unique<Impl>(std::move(graph))) {}
GraphProgram::~GraphProgram() = default;
GraphProgram::GraphProgram(GraphProgram&&) noexcept = default;
GraphProgram& GraphProgram::operator=(GraphProgram&&) noexcept = default;

const Graph& GraphProgram::graph() const {
  return impl_->graph();
}

c10::IValue GraphProgram::run(const Args& args, const Kwargs& kwargs,
                              const RunOptions& options) const {
  return impl_->run(args, kwargs, options);
}

}  // namespace stagecraft
