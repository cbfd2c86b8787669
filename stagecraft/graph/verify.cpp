#include <bit>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "stagecraft/graph/graph.h"
#include "stagecraft/graph/names.h"
#include "stagecraft/graph/op_types.h"
#include "stagecraft/graph/verify_parts.h"
#include "stagecraft/tree/tensor_meta.h"

namespace stagecraft {

namespace {

using detail::check;

class Verifier {
 public:
  explicit Verifier(const GraphParts& parts)
      : parts_(parts), is_made_(parts.values.size(), false) {}

  void run() {
    detail::check_sizes(parts_);
    for (const GraphState& state : parts_.states) check_state(state);
    check(parts_.args.kind() == TreeSpec::Kind::kTuple, "args: expected a tuple, got {}",
          describe_kind(parts_.args));
    check(parts_.kwargs.kind() == TreeSpec::Kind::kDict, "kwargs: expected a dict, got {}",
          describe_kind(parts_.kwargs));
    const std::size_t leaves = parts_.args.num_leaves() + parts_.kwargs.num_leaves();
    check(parts_.inputs.size() == leaves, "expected {} inputs, got {}", leaves,
          parts_.inputs.size());
    for (const Argument& input : parts_.inputs) {
      check(input.list() == nullptr, "an input is a list");
      check(input.size() == nullptr || is_told(*input.size()),
            "an input is neither a tensor, nor a size, nor fixed");
      if (input.value() != nullptr) make(*input.value(), "inputs");
    }
    std::unordered_set<std::string> names;
    for (const GraphNode& node : parts_.nodes) {
      check(is_name(node.name), "'{}' is not a valid name for a node", node.name);
      check(names.insert(node.name).second, "two nodes are named {}", node.name);
      check_node(node);
    }
    check(parts_.outputs.size() == parts_.output.num_leaves(), "expected {} outputs, got {}",
          parts_.output.num_leaves(), parts_.outputs.size());
    for (const Argument& output : parts_.outputs) read(output, "return");
    for (ValueId id(0); parts_.values.contains(id); ++id) {
      check(is_made_[id], "%{} is not made by any node", parts_.values[id].name);
    }
    detail::check_known_sizes(parts_);
  }

  /// A branch of a cond: no states, a tuple of tensors as its output, no keywords.
  static void check_branch(const GraphNode& node, const Graph& branch) {
    const GraphParts& parts = branch.parts();
    const std::size_t count = length_of(node.arguments[1]) + length_of(node.arguments[2]);
    check(parts.states.empty() && parts.kwargs.num_leaves() == 0,
          "{}: a branch has states or keywords", node.name);
    check(parts.inputs.size() == count, "{}: a branch takes {} operands, got {}", node.name,
          parts.inputs.size(), count);
    const Argument::List* results = node.results.front().list();
    check(results != nullptr && parts.output.kind() == TreeSpec::Kind::kTuple &&
              parts.outputs.size() == results->size(),
          "{}: a branch returns {} values, got a different number", node.name,
          parts.outputs.size());
  }

 private:
  static std::size_t length_of(const Argument& list) {
    if (list.list() != nullptr) return list.list()->size();
    const c10::IValue* fixed = list.fixed_value();
    return fixed != nullptr && fixed->isList() ? fixed->toListRef().size() : 0;
  }

  static bool is_size(const SizeExpr& expr) {
    return expr.terms().size() == 1 && expr.terms().front().factor == 1 &&
           std::popcount(expr.sizes()) == 1;
  }

  /// Whether an input may be this expression: a single size without rule or measurement.
  bool is_told(const SizeExpr& expr) const {
    if (!is_size(expr) || expr.sizes() >> parts_.sizes.size() != 0) return false;
    const GraphSize& size = parts_.sizes[static_cast<std::size_t>(std::countr_zero(expr.sizes()))];
    return !size.rule && !size.measured;
  }

  void make(ValueId id, std::string_view where) {
    check(parts_.values.contains(id), "{}: there is no value {}", where, id.value());
    check(!is_made_[id], "{}: %{} is made twice", where, parts_.values[id].name);
    is_made_[id] = true;
  }

  void read(const Argument& argument, std::string_view where) const {
    for_each_value(argument, [&](ValueId id) {
      check(parts_.values.contains(id), "{}: there is no value {}", where, id.value());
      check(is_made_[id], "{}: %{} is read before it is made", where, parts_.values[id].name);
    });
  }

  void check_state(const GraphState& state) {
    make(state.value, "states");
    const GraphValue& value = parts_.values[state.value];
    check(state.tensor.defined(), "%{} has no tensor", value.name);
    for (const std::string& name : state.other_names) {
      check(is_name(name), "'{}' is not a valid name for a state", name);
      check(other_names_.insert(name).second && name != value.name, "two states are named %{}",
            name);
    }
    const auto given = state.tensor.sizes();
    bool is_same = state.tensor.scalar_type() == value.dtype && given.size() == value.shape.size();
    for (std::size_t i = 0; is_same && i < given.size(); ++i) {
      is_same = value.shape[i].is_number() && value.shape[i].number() == given[i];
    }
    check(is_same, "%{}: its tensor is {}", value.name, describe(state.tensor));
  }

  void check_node(const GraphNode& node) {
    const c10::FunctionSchema* schema = find_schema(node.op);
    check(schema != nullptr, "{}: there is no operator {}", node.name, toString(node.op));
    check(node.arguments.size() == schema->arguments().size(), "{}: {} takes {} arguments, got {}",
          node.name, toString(node.op), schema->arguments().size(), node.arguments.size());
    check(node.results.size() == schema->returns().size(), "{}: {} returns {} values, got {}",
          node.name, toString(node.op), schema->returns().size(), node.results.size());
    for (std::size_t i = 0; i < node.arguments.size(); ++i) {
      const c10::Argument& formal = schema->arguments()[i];
      read(node.arguments[i], node.name);
      check(detail::fits(parts_, node.arguments[i], formal.real_type()),
            "{}: {} takes '{}' as {}, got a different kind", node.name, toString(node.op),
            formal.name(), formal.real_type()->str());
    }
    const bool is_cond = node.op.name == kCondOperator;
    check(node.branches.size() == (is_cond ? 2 : 0), "{}: expected {} branches, got {}", node.name,
          is_cond ? 2 : 0, node.branches.size());
    for (const Graph& branch : node.branches) check_branch(node, branch);
    for (std::size_t i = 0; i < node.results.size(); ++i) {
      const c10::TypePtr type = schema->returns()[i].real_type();
      check(detail::is_result(node.results[i], type), "{}: {} returns {}, got a different kind",
            node.name, toString(node.op), type->str());
      for_each_value(node.results[i], [&](ValueId id) { make(id, node.name); });
    }
  }

  const GraphParts& parts_;
  IndexedVector<ValueId, bool> is_made_;
  std::unordered_set<std::string> other_names_;
};

}  // namespace

std::optional<std::string> verify(const GraphParts& parts) {
  try {
    Verifier(parts).run();
  } catch (const detail::GraphDefect& defect) {
    return defect.message;
  }
  return std::nullopt;
}

}  // namespace stagecraft
