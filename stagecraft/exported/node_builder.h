#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <ATen/core/function_schema.h>

#include "stagecraft/exported/program_schema.h"
#include "stagecraft/exported/size_table.h"
#include "stagecraft/graph/graph.h"
#include "stagecraft/graph/names.h"

namespace stagecraft::exported {

/// The state in which nodes run.
struct Mode {
  bool is_no_grad = false;
  std::optional<AutocastState> autocast = {};
};

/// Values by their names in one graph of the archive.
using Scope = std::unordered_map<std::string, Argument>;

/// Makes the nodes of one graph: the model, or a branch of a cond. Errors are GraphErrors that name
/// the node.
class NodeBuilder {
 public:
  NodeBuilder(GraphParts& parts, SizeTable& sizes, UniqueNames& names,
              std::vector<std::string>& warnings, std::string prefix = "");

  /// Adds a value that no node makes: a state or an input.
  ValueId add_value(const std::string& name, const RawTensor& meta);
  /// Imports all nodes of a graph. Their results are added to the scope.
  void import_nodes(const RawGraph& graph, Scope& scope, const Mode& mode);
  /// The argument of the graph for an argument of the archive.
  Argument resolve(const RawArgument& raw, const Scope& scope);
  /// A number of the archive, as a fixed number or as an expression of sizes.
  Argument number_of(const RawSymbol& symbol);
  /// Adds a copy of the value.
  ValueId copy_of(ValueId value, const std::string& target);
  /// Adds a node that copies a value into a state or an input, after all other nodes.
  void copy_back(const Argument& into, const Argument& value, const std::string& target);

 private:
  SizeExpr shape_of(const RawSymbol& size, uint32_t& open, std::size_t dim);
  const RawSymbol* find_symbol(const std::string& name) const;
  Argument number_of(const std::string& name);
  /// Whether a node computes only numbers. The archive has the expression of each number, so such
  /// nodes are skipped.
  static bool is_number_node(const RawNode& node);
  void import_node(const RawNode& node, Scope& scope, const Mode& mode);
  GraphNode start_node(const RawNode& node, c10::OperatorName op, const Mode& mode);
  void import_call(const RawNode& node, c10::OperatorName op, Scope& scope, const Mode& mode);
  void note_change(const GraphNode& made, const c10::FunctionSchema& schema);
  int32_t original(ValueId value) const;
  /// Whether a copy at the end writes a state onto itself. (An export adds such a copy for a state
  /// that was changed in place.) The copy would change nothing, but it would break a backward that
  /// needs the state.
  bool is_onto_itself(const GraphNode& made) const;
  static void bind_results(const RawNode& node, const Argument& value, Scope& scope);
  /// Makes a value with its name in the archive, and adds it to the scope. Returns None for a
  /// result without a name.
  Argument make_result(const RawArgument& output, const std::string& node, Scope& scope);
  ValueId next_value() const;
  void measure(const RawTensor& meta, ValueId value);
  void add_measured(const std::string& symbol, const MeasuredSize& how,
                    std::optional<int64_t> hint);
  std::vector<Argument> make_results(const RawNode& node, const c10::FunctionSchema& schema,
                                     const std::string& name, Scope& scope);
  void import_item(const RawNode& node, Scope& scope, const Mode& mode);
  void check_item(const RawNode& node, const RawSymbol& symbol, Scope& scope, const Mode& mode);
  ValueId add_copy(GraphNode node, ValueId value);
  /// Adds a node with one result, which has the name of the node and is otherwise `result`.
  ValueId add_node(GraphNode node, GraphValue result);

  // float_nodes.cpp
  static bool is_float(const RawArgument& argument);
  /// Adds a node whose result is a double without dimensions and without history. `given` are the
  /// first arguments of the operator. Its argument `dtype`, if it has one, is double. Other
  /// arguments have their defaults.
  ValueId add_float(const RawNode& node, c10::OperatorName op, const std::vector<Argument>& given,
                    const Mode& mode);
  /// Imports a node that computes floats, or an int from a float. Returns false for other nodes.
  bool import_float(const RawNode& node, Scope& scope, const Mode& mode);
  /// Casts the floats among the arguments to the dtype of the result, if no tensor of floats with
  /// dimensions is among them. Otherwise the doubles would decide the dtype of the result.
  void give_floats_the_dtype(const RawNode& node, GraphNode& made, const Mode& mode);

  // region_nodes.cpp
  const RawGraph& graph_at(const RawNode& node, std::size_t i) const;
  const c10::IValue& fixed_at(const RawNode& node, std::size_t i) const;
  bool flag_at(const RawNode& node, std::size_t i) const;
  void import_region(const RawNode& node, const std::string& kind, Scope& scope, const Mode& mode);
  Mode autocast_of(const RawNode& node, const Mode& mode);
  void inline_region(const RawNode& node, std::size_t at, Scope& scope, const Mode& mode);
  void import_cond(const RawNode& node, Scope& scope, const Mode& mode);
  /// The sizes without a rule that the nodes and outputs of a branch read.
  static SizeSet needed_sizes(const GraphParts& branch, const SizeTable& table);
  void build_branch(const RawGraph& graph, const std::vector<RawArgument>& given,
                    const std::string& prefix, SizeTable& table, GraphParts& branch);
  /// A number as a tensor, 0 or 1, for a predicate that depends on sizes.
  Argument as_tensor(const Argument& number, const RawNode& node, const Mode& mode);

  GraphParts& parts_;
  SizeTable& sizes_;
  UniqueNames& names_;
  std::vector<std::string>& warnings_;
  std::string prefix_;
  std::vector<const RawGraph*> graphs_;             // the graph that is read comes last
  std::unordered_map<int32_t, int32_t> unchanged_;  // from a value changed in place to the original
  std::set<int32_t> floats_;                        // values that are floats of Python
  std::set<std::string> functions_;
  std::set<std::string> value_names_;
  int32_t regions_ = 0;
};

/// The names of the symbols in an expression.
std::vector<std::string> symbols_in(std::string_view text);
/// Whether the expression is the symbol and nothing else.
bool is_bare(std::string_view text, const std::string& symbol);

/// All leaves of lists in lists.
void flatten(const RawArgument& argument, std::vector<RawArgument>& into);
std::vector<RawArgument> flattened(const std::vector<RawArgument>& arguments);

}  // namespace stagecraft::exported
