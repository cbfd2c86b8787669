#include "stagecraft/partition/modules.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include "stagecraft/base/check.h"
#include "stagecraft/partition/uses.h"

namespace stagecraft {

namespace {

/// The number of characters to insert, delete or replace to turn `a` into `b`.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t exchanged = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({exchanged, row[j] + 1, row[j - 1] + 1}));
    }
  }
  return row.back();
}

bool is_inside(std::string_view name, std::string_view module) {
  return name.size() > module.size() && name.starts_with(module) && name[module.size()] == '.';
}

/// The names of a state, or of the state that a value is computed from, the number of its reads,
/// and how many of them were seen.
struct Held {
  std::vector<std::string> names;
  std::size_t reads = 1;
  std::size_t read = 0;

  const std::string* next() {
    return names.empty() ? nullptr : &names[name_of_read(read++, reads, names.size())];
  }
};

std::string parent_of(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}

}  // namespace

std::string_view module_name(std::string_view name) {
  std::size_t dot = name.find('.');
  for (std::size_t parts = 1; dot != std::string_view::npos; ++parts) {
    if (parts == kMaxModuleDepth) return name.substr(0, dot);
    dot = name.find('.', dot + 1);
  }
  return name;
}

ModuleExtents::ModuleExtents(const Graph& graph)
    : read_at_(graph.parts().nodes.size()), module_at_(graph.parts().nodes.size()) {
  const std::vector<GraphNode>& nodes = graph.parts().nodes;
  const ValueUses uses(graph);
  std::map<ValueId, Held> held;
  for (const GraphState& state : graph.parts().states) {
    Held& own = held[state.value];
    if (state.kind == GraphState::Kind::kConstant) continue;
    own.names = {graph.value(state.value).name};
    own.reads = uses.reads(state.value).size();
    own.names.insert(own.names.end(), state.other_names.begin(), state.other_names.end());
  }
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    bool has_others = false;
    for (const Argument& argument : nodes[n].arguments) {
      for_each_value(argument, [&](ValueId value) {
        const auto found = held.find(value);
        if (found == held.end()) {
          has_others = true;
        } else if (const std::string* name = found->second.next()) {
          read_at_[n].push_back(*name);
        }
      });
    }
    for (const std::string& name : read_at_[n]) {
      module_at_[n] = module_name(parent_of(name));
      for (std::string module = module_at_[n]; !module.empty(); module = parent_of(module)) {
        add(module, n, false);
      }
    }
    if (has_others || read_at_[n].empty()) continue;
    // A value computed only from a weight (transposed, cast) counts as the weight.
    for (const Argument& result : nodes[n].results) {
      for_each_value(result, [&](ValueId value) { held[value].names = {read_at_[n].front()}; });
    }
  }
  for (std::size_t n = 0; n < graph.parts().nodes.size(); ++n) {
    const std::string scope(module_name(graph.parts().nodes[n].scope));
    for (std::string name = scope; !name.empty(); name = parent_of(name)) add(name, n, true);
    if (module_at_[n].empty()) module_at_[n] = scope;
  }
}

void ModuleExtents::add(const std::string& name, std::size_t node, bool is_exact) {
  const auto [found, is_new] = extents_.try_emplace(name, Extent{node, node, is_exact});
  Extent& extent = found->second;
  if (is_exact && !extent.is_exact) extent = {node, node, true};
  if (is_exact != extent.is_exact) return;
  extent.first = std::min(extent.first, node);
  extent.last = std::max(extent.last, node);
}

std::optional<ModuleExtents::Extent> ModuleExtents::find(std::string_view name) const {
  const auto found = extents_.find(name);
  if (found == extents_.end()) return std::nullopt;
  return found->second;
}

ModuleExtents::Extent ModuleExtents::get(std::string_view name) const {
  if (const auto found = find(name)) return *found;
  std::vector<std::pair<std::size_t, std::string>> near;
  for (const auto& [known, extent] : extents_) near.emplace_back(edit_distance(name, known), known);
  std::ranges::sort(near);
  std::string hint;
  for (std::size_t i = 0; i < near.size() && i < 3; ++i) {
    if (i > 0 && near[i].first > near[0].first + 2) break;
    hint += fmt::format("{}{}", i == 0 ? "; the nearest is " : ", then ", near[i].second);
  }
  throw ArgumentError(fmt::format(
      "there is no module '{}' that reads a parameter or buffer, and no scope of that name{}", name,
      hint.empty() ? "; the model has neither" : hint));
}

std::vector<std::string> ModuleExtents::names() const {
  std::vector<std::string> names;
  for (const auto& [name, extent] : extents_) names.push_back(name);
  std::ranges::stable_sort(names, {}, [&](const std::string& name) {
    const Extent& extent = extents_.find(name)->second;
    return std::pair(extent.first, -static_cast<int64_t>(extent.last));
  });
  return names;
}

std::size_t ModuleExtents::layer_depth() const {
  constexpr std::size_t kLeast = 2;
  std::map<std::string, int> numbered;  // by parent
  std::size_t depth = SIZE_MAX;
  for (const auto& [name, extent] : extents_) {
    const std::size_t dot = name.rfind('.');
    const std::string last = dot == std::string::npos ? name : name.substr(dot + 1);
    if (last.find_first_not_of("0123456789") != std::string::npos) continue;
    if (++numbered[parent_of(name)] < 2) continue;
    depth = std::min(depth, static_cast<std::size_t>(std::ranges::count(name, '.')) + 1);
  }
  return depth == SIZE_MAX ? kLeast : std::max(depth, kLeast);
}

bool ModuleExtents::is_other(std::size_t node, std::string_view name) const {
  return std::ranges::any_of(read_at_[node],
                             [&](const std::string& read) { return !is_inside(read, name); });
}

std::optional<std::size_t> ModuleExtents::last_other_before(std::size_t node,
                                                            std::string_view name) const {
  for (std::size_t n = node; n-- > 0;) {
    if (is_other(n, name)) return n;
  }
  return std::nullopt;
}

std::optional<std::size_t> ModuleExtents::first_other_after(std::size_t node,
                                                            std::string_view name) const {
  for (std::size_t n = node + 1; n < read_at_.size(); ++n) {
    if (is_other(n, name)) return n;
  }
  return std::nullopt;
}

}  // namespace stagecraft
