#include "cli/model/module_tree.h"

#include <algorithm>
#include <set>

#include "stagecraft/partition/modules.h"

namespace stagecraft::cli {

std::string_view last_part(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

std::string_view parent_part(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
}

bool is_numbered(std::string_view name) {
  const std::string_view part = last_part(name);
  return !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
}

ModuleTree::ModuleTree(const Graph& graph, const NodeCosts& costs) {
  modules_.emplace_back();
  by_name_.emplace("", 0);
  const std::vector<GraphNode>& nodes = graph.parts().nodes;
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    const std::string scope(module_name(nodes[n].scope));
    const std::size_t own = add(scope);
    module_at_.push_back(own);
    ++modules_[own].own_operators;
    for (std::string_view name = scope;; name = parent_part(name)) {
      ModuleFacts& module = modules_[by_name_.find(name)->second];
      ++module.operators;
      module.flops += costs.flops[n];
      if (name.empty()) break;
    }
  }
  add_parameters(graph);
}

std::size_t ModuleTree::add(const std::string& name) {
  const auto found = by_name_.find(name);
  if (found != by_name_.end()) return found->second;
  const std::size_t parent = add(std::string(parent_part(name)));
  const std::size_t number = modules_.size();
  modules_.push_back({.name = name, .depth = modules_[parent].depth + 1});
  modules_[parent].children.push_back(number);
  by_name_.emplace(name, number);
  return number;
}

void ModuleTree::add_parameters(const Graph& graph) {
  for (const GraphState& state : graph.parts().states) {
    if (state.kind != GraphState::Kind::kParameter) continue;
    std::vector<std::string> names = {graph.value(state.value).name};
    names.insert(names.end(), state.other_names.begin(), state.other_names.end());
    std::set<std::size_t> holders = {0};
    for (const std::string& name : names) {
      for (std::string_view holder = module_name(parent_part(name)); !holder.empty();
           holder = parent_part(holder)) {
        holders.insert(add(std::string(holder)));
      }
    }
    for (const std::size_t holder : holders) {
      modules_[holder].parameters += state.tensor.numel();
      modules_[holder].parameter_bytes += static_cast<int64_t>(state.tensor.nbytes());
    }
  }
}

std::vector<std::size_t> ModuleTree::in_order() const {
  std::vector<std::size_t> order;
  std::vector<std::size_t> todo = {0};
  while (!todo.empty()) {
    const std::size_t next = todo.back();
    todo.pop_back();
    order.push_back(next);
    const std::vector<std::size_t>& children = modules_[next].children;
    todo.insert(todo.end(), children.rbegin(), children.rend());
  }
  return order;
}

bool ModuleTree::is_alike(std::size_t a, std::size_t b) const {
  const ModuleFacts& left = modules_[a];
  const ModuleFacts& right = modules_[b];
  if (left.operators != right.operators || left.flops != right.flops ||
      left.parameters != right.parameters || left.parameter_bytes != right.parameter_bytes ||
      left.children.size() != right.children.size()) {
    return false;
  }
  for (std::size_t i = 0; i < left.children.size(); ++i) {
    const std::size_t x = left.children[i];
    const std::size_t y = right.children[i];
    if (last_part(modules_[x].name) != last_part(modules_[y].name) || !is_alike(x, y)) return false;
  }
  return true;
}

}  // namespace stagecraft::cli
