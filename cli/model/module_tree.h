#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/graph/graph.h"
#include "stagecraft/partition/node_costs.h"

namespace stagecraft::cli {

/// One module, or the whole model, whose name is empty.
struct ModuleFacts {
  std::string name;                        ///< from the root: model.layers.3
  std::size_t depth = 0;                   ///< 3 for model.layers.3
  std::vector<std::size_t> children = {};  ///< in the order in which they run
  int64_t operators = 0;                   ///< including those of its children
  int64_t own_operators = 0;               ///< without those of its children
  int64_t flops = 0;
  /// Elements of the parameters that the module holds, under any name, each counted once. A weight
  /// that two modules share counts in both.
  int64_t parameters = 0;
  int64_t parameter_bytes = 0;
};

/// The modules of a model. An operator belongs to the module whose forward called it.
class ModuleTree {
 public:
  ModuleTree(const Graph& graph, const NodeCosts& costs);

  const ModuleFacts& module(std::size_t number) const { return modules_[number]; }
  std::size_t size() const { return modules_.size(); }
  /// The innermost module of a node; 0 is the model.
  std::size_t module_at(std::size_t node) const { return module_at_[node]; }
  /// All modules, each before its children.
  std::vector<std::size_t> in_order() const;
  /// Whether two modules and all their children have the same numbers.
  bool is_alike(std::size_t a, std::size_t b) const;

 private:
  std::size_t add(const std::string& name);
  void add_parameters(const Graph& graph);

  std::vector<ModuleFacts> modules_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  std::vector<std::size_t> module_at_;
};

/// The part of a name after its last dot.
std::string_view last_part(std::string_view name);
/// The part of a name before its last dot; empty for a name without dots.
std::string_view parent_part(std::string_view name);
/// Whether a module is one of a list: the last part of its name is a number.
bool is_numbered(std::string_view name);

}  // namespace stagecraft::cli
