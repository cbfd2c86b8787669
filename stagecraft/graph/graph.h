#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/operator_name.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "stagecraft/base/error.h"
#include "stagecraft/base/indexed_vector.h"
#include "stagecraft/graph/argument.h"
#include "stagecraft/graph/size_expr.h"
#include "stagecraft/graph/size_rule.h"
#include "stagecraft/tree/tree_spec.h"

namespace stagecraft {

/// A size that is known only when the graph runs, because it depends on elements.
struct MeasuredSize {
  ValueId value;     ///< made by a node
  int32_t dim = -1;  ///< of the value; -1: the element of the value, a tensor with one integer
};

/// A dimension of the inputs that may change from call to call, or a number computed from such
/// dimensions.
struct GraphSize {
  std::string name;     ///< a word: "B"
  int64_t example = 0;  ///< in the example that the graph was made from
  int64_t least = 1;    ///< smaller sizes are refused
  /// Larger sizes are refused, too, because the model was not tried there.
  int64_t greatest = std::numeric_limits<int64_t>::max();
  /// How the size is computed from earlier sizes. A size without rule and measurement is determined
  /// by the inputs.
  std::optional<SizeRule> rule = {};
  std::optional<MeasuredSize> measured = {};
};

/// A condition on the sizes of the inputs.
struct GraphGuard {
  SizeExpr holds;    ///< 0 if the condition is violated
  std::string text;  ///< in the caller's words: `args[0].size(0) % 2 == 0`
};

/// What is known about a tensor before it is computed.
struct GraphValue {
  std::string name;  ///< a word, or words joined by dots: `addmm_1`, `layers.0.weight`
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<SizeExpr> shape = {};
  /// Dimensions, as bits, that depend on elements. `shape` has their size in the example; every
  /// size is accepted.
  uint32_t open_dims = 0;
  c10::Device device = c10::kCPU;
  /// Values with the same number, 0 or more, may share memory: a view and its base, a value before
  /// and after a change in place. -1: the value shares memory with no other value.
  int32_t memory = -1;
};

/// The autocast state around an operator.
struct AutocastState {
  c10::DeviceType device_type = c10::kCPU;
  c10::ScalarType dtype = c10::ScalarType::BFloat16;
  bool is_enabled = true;  ///< false in a region that switches it off
  bool is_cached = true;   ///< whether a tensor is cast only once
  /// The outermost autocast region around the operator, counted from 1. Cast tensors are kept until
  /// it ends. 0: until the end of the run.
  int32_t region = 0;

  friend bool operator==(const AutocastState&, const AutocastState&) = default;
};

struct GraphParts;
struct GraphState;

/// A model as a list of operators on named tensors, in order. Parameters and buffers are the
/// model's own tensors, not copies. Immutable; copies share their data. A pass (passes/run_pass.h)
/// changes a copy of the parts and makes a new graph.
///
/// An in-place operator returns a new value: `add_` reads `x` and makes `add_` in the same memory.
/// No later node reads the old value.
class Graph {
 public:
  /// Throws GraphError unless verify() finds nothing.
  explicit Graph(GraphParts parts);

  const GraphParts& parts() const { return *parts_; }
  const GraphValue& value(ValueId id) const;
  std::vector<std::string> size_names() const;
  /// Null if there is no such state. `name` may be any of its names.
  const GraphState* find_state(std::string_view name) const;

 private:
  std::shared_ptr<const GraphParts> parts_;
};

/// One call of an operator.
struct GraphNode {
  std::string name;                      ///< unique
  c10::OperatorName op{"", ""};          ///< in torch's registry
  std::vector<Argument> arguments = {};  ///< one for each argument of the schema
  std::vector<Argument> results = {};    ///< one for each of the schema; None: not a tensor
  bool is_no_grad = false;               ///< the operator ran without gradients
  std::optional<AutocastState> autocast = {};
  std::string scope = {};  ///< the regions that it ran in, outermost first: "encoder.mask"
  std::vector<Graph> branches = {};  ///< of kCondOperator: the graphs for true and false
};

/// A tensor that the graph holds.
struct GraphState {
  /// The role of a tensor in the model.
  enum class Kind : uint8_t { kParameter, kBuffer, kConstant };

  Kind kind = Kind::kParameter;
  ValueId value;  ///< has the name of the state
  at::Tensor tensor;
  std::vector<std::string> other_names = {};  ///< if the model holds the tensor under several names
  bool is_persistent = true;  ///< part of what is saved; can be false only for buffers
};

/// The parts of a graph.
struct GraphParts {
  bool is_exported = false;  ///< read from an archive of torch.export, not captured here
  std::vector<GraphSize> sizes = {};
  std::vector<GraphGuard> guards = {};
  IndexedVector<ValueId, GraphValue> values = {};
  std::vector<GraphState> states = {};
  TreeSpec args = TreeSpec::tuple({});  ///< a tuple, one child for each positional argument
  TreeSpec kwargs = TreeSpec::dict({}, {});
  /// One for each leaf of args, then of kwargs: a tensor, a size, or a fixed value that every
  /// caller must pass again.
  std::vector<Argument> inputs = {};
  std::vector<GraphNode> nodes = {};  ///< in the order in which they run
  TreeSpec output = TreeSpec::leaf();
  std::vector<Argument> outputs = {};  ///< one for each leaf
};

inline const GraphValue& Graph::value(ValueId id) const {
  return parts_->values[id];
}

/// The operator that runs one of two graphs. Both graphs take the operands, then the sizes, and
/// return a tuple of tensors:
/// `stagecraft::cond(Tensor predicate, Tensor[] operands, int[] sizes) -> Tensor[]`.
inline constexpr const char* kCondOperator = "stagecraft::cond";

/// Marks where pipe_split() was called. It takes and returns nothing.
inline constexpr const char* kSplitOperator = "stagecraft::pipe_split";

/// The first defect, in one line that names the node or value; nothing if the graph is valid. A
/// graph is valid if its operators exist and have the right number and kinds of arguments, every
/// tensor is made once, before it is read, names are valid and unique, sizes are known, and the
/// outputs exist.
std::optional<std::string> verify(const GraphParts& parts);

/// A graph that verify() rejects, or a node that cannot run.
class GraphError : public Error {
 public:
  using Error::Error;
};

}  // namespace stagecraft
