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
#include "stagecraft/graph/argument.h"
#include "stagecraft/graph/size_expr.h"
#include "stagecraft/graph/size_rule.h"
#include "stagecraft/tree/tree_spec.h"

namespace stagecraft {

/// A size that is known only when the graph runs, since it depends on elements.
struct MeasuredSize {
  ValueId value;     ///< which a node makes
  int32_t dim = -1;  ///< of the value; -1: the value itself, a tensor with one whole number
};

/// A dimension of the inputs that may change from call to call, or a number that follows from such.
struct GraphSize {
  std::string name;     ///< a word: "B"
  int64_t example = 0;  ///< that of the example which the graph was made from
  int64_t least = 1;    ///< smaller ones are refused
  /// Larger ones too: nobody has looked what the model does there.
  int64_t greatest = std::numeric_limits<int64_t>::max();
  /// How it follows from sizes before it. Neither this nor the next: the inputs tell it.
  std::optional<SizeRule> rule = {};
  std::optional<MeasuredSize> measured = {};
};

/// What must hold for the sizes of the inputs.
struct GraphGuard {
  SizeExpr holds;    ///< 0 where it does not
  std::string text;  ///< in the caller's words: `args[0].size(0) % 2 == 0`
};

/// What is known of a tensor before it is computed.
struct GraphValue {
  std::string name;  ///< a word, or words joined by dots: `addmm_1`, `layers.0.weight`
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<SizeExpr> shape = {};
  /// Dimensions, as bits, that depend on elements: `shape` says how large the example's are, and
  /// any other size may come.
  uint32_t open_dims = 0;
  c10::Device device = c10::kCPU;
  /// Values with the same number, 0 or more, may share memory: a view and what it views, what an
  /// operator changes in place before and after. One that shares with no other has -1.
  int32_t memory = -1;
};

/// Autocast as it was around an operator.
struct AutocastState {
  c10::DeviceType device_type = c10::kCPU;
  c10::ScalarType dtype = c10::ScalarType::BFloat16;
  bool is_enabled = true;  ///< false in a region that switches it off
  bool is_cached = true;   ///< whether a tensor that was cast once is not cast again
  /// The outermost region around it, counted from 1: tensors that were cast are kept until that
  /// ends. 0: until the end of the run.
  int32_t region = 0;

  friend bool operator==(const AutocastState&, const AutocastState&) = default;
};

struct GraphParts;
struct GraphState;

/// A model as the operators it calls, on tensors with names, in order. What it holds is as it was
/// when the model was captured: parameters and buffers are the model's own tensors, not copies.
/// Immutable; a copy shares. A pass takes the parts, changes a copy and makes a new graph of it.
///
/// An operator that works in place returns a new value: `add_` reads `x` and makes `add_`, which is
/// the same memory. Nothing reads the old one afterwards.
class Graph {
 public:
  /// Throws GraphError unless verify() finds nothing.
  explicit Graph(GraphParts parts);

  const GraphParts& parts() const { return *parts_; }
  const GraphValue& value(ValueId id) const;
  std::vector<std::string> size_names() const;
  /// Null when there is none of that name; `name` may be one of its other names.
  const GraphState* find_state(std::string_view name) const;

 private:
  std::shared_ptr<const GraphParts> parts_;
};

/// One call of an operator.
struct GraphNode {
  std::string name;                      ///< no other node has it
  c10::OperatorName op{"", ""};          ///< of the engine's registry
  std::vector<Argument> arguments = {};  ///< one for each of the schema's
  std::vector<Argument> results = {};    ///< likewise; None for what is no tensor
  bool is_no_grad = false;               ///< it ran with gradients off
  std::optional<AutocastState> autocast = {};
  std::string scope = {};            ///< the regions it ran in, outermost first: "encoder.mask"
  std::vector<Graph> branches = {};  ///< of kCondOperator: what runs if it holds, what if not
};

/// A tensor that the graph holds.
struct GraphState {
  /// What a tensor is to the model.
  enum class Kind : uint8_t { kParameter, kBuffer, kConstant };

  Kind kind = Kind::kParameter;
  ValueId value;  ///< its name is the state's
  at::Tensor tensor;
  std::vector<std::string> other_names = {};  ///< of a tensor that the model holds several times
  bool is_persistent = true;                  ///< part of what is saved; false for buffers alone
};

/// All that a graph is made of.
struct GraphParts {
  bool is_exported = false;  ///< read from an archive of torch.export, not captured here
  std::vector<GraphSize> sizes = {};
  std::vector<GraphGuard> guards = {};
  std::vector<GraphValue> values = {};
  std::vector<GraphState> states = {};
  TreeSpec args = TreeSpec::tuple({});  ///< a tuple, one child for each positional argument
  TreeSpec kwargs = TreeSpec::dict({}, {});
  /// One for each leaf of args, then of kwargs: a tensor, one of the sizes, or what the model was
  /// captured with, which a caller must give again.
  std::vector<Argument> inputs = {};
  std::vector<GraphNode> nodes = {};  ///< in the order in which they run
  TreeSpec output = TreeSpec::leaf();
  std::vector<Argument> outputs = {};  ///< one for each leaf
};

inline const GraphValue& Graph::value(ValueId id) const {
  return parts_->values[id.position()];
}

/// Runs one of two graphs, which take the operands, then the sizes, and return a tuple of tensors:
/// `stagecraft::cond(Tensor predicate, Tensor[] operands, int[] sizes) -> Tensor[]`.
inline constexpr const char* kCondOperator = "stagecraft::cond";

/// Marks where pipe_split() was called. It takes and returns nothing.
inline constexpr const char* kSplitOperator = "stagecraft::pipe_split";

/// What is wrong with it, in one line that names the node or value; nothing when all holds:
/// operators exist and are called with as many arguments as they take, of the right kinds; every
/// tensor is made once, before it is read; names are words and come once; sizes are known; the
/// outputs exist.
std::optional<std::string> verify(const GraphParts& parts);

/// A graph that verify() refuses, or a node that cannot run.
class GraphError : public Error {
 public:
  using Error::Error;
};

}  // namespace stagecraft
