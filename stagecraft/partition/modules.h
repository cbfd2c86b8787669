#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/graph/graph.h"

namespace stagecraft {

/// Modules nest that deep; a name with more parts, of which hostile files may have any number,
/// means the module that its first parts name.
inline constexpr std::size_t kMaxModuleDepth = 64;

/// The name, or its first kMaxModuleDepth parts.
std::string_view module_name(std::string_view name);

/// Where the modules of a model stand in its graph.
///
/// libtorch's modules leave no trace when they are called, so a module is where its parameters and
/// buffers are read: it reaches from the first node that reads one of them, or what was made of
/// them alone (a transposed weight), to the last. A region named with scope() is where its nodes
/// are, exactly. A module without either is not found.
///
/// Of a tensor with several names (tied weights), the last read counts for the last name, those
/// before it for the others in order.
class ModuleExtents {
 public:
  /// From which node to which a module reaches.
  struct Extent {
    std::size_t first = 0;  ///< node
    std::size_t last = 0;
    bool is_exact = false;  ///< named by scope()
  };

  explicit ModuleExtents(const Graph& graph);

  /// Nothing when there is none of that name.
  std::optional<Extent> find(std::string_view name) const;
  /// The same; ArgumentError that names the nearest names there are.
  Extent get(std::string_view name) const;
  /// All of them, in the order of their first nodes.
  std::vector<std::string> names() const;

  /// The least depth at which two numbered modules have the same parent (`layers.0` and `layers.1`
  /// have depth 2), and at least 2.
  std::size_t layer_depth() const;

  /// The last node before `node` that reads a parameter or buffer of another module than `name`;
  /// nothing when there is none.
  std::optional<std::size_t> last_other_before(std::size_t node, std::string_view name) const;
  /// The first behind it, likewise.
  std::optional<std::size_t> first_other_behind(std::size_t node, std::string_view name) const;

  /// The innermost module that a node reads a parameter of, else the scope that it is in, else
  /// empty.
  const std::string& module_at(std::size_t node) const { return module_at_[node]; }

 private:
  void add(const std::string& name, std::size_t node, bool is_exact);
  bool is_other(std::size_t node, std::string_view name) const;

  std::map<std::string, Extent, std::less<>> extents_;
  std::vector<std::vector<std::string>> read_at_;  // names of states, by node
  std::vector<std::string> module_at_;
};

}  // namespace stagecraft
