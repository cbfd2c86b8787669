#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/graph/graph.h"

namespace stagecraft {

/// The deepest nesting of modules. Of a name with more parts, as in a hostile file, only the first
/// parts are used.
inline constexpr std::size_t kMaxModuleDepth = 64;

/// The name, or its first kMaxModuleDepth parts.
std::string_view module_name(std::string_view name);

/// Where the modules of a model are in its graph.
///
/// Calls of libtorch's modules leave no trace, so a module is located by its parameters and
/// buffers. It extends from the first to the last node that reads one of them, or a value computed
/// only from them (a transposed weight). A region named with scope() has exactly its nodes. A
/// module without parameters, buffers and scope is not found.
///
/// If a tensor has several names (tied weights), its last read counts for the last name, and the
/// earlier reads for the other names in order.
class ModuleExtents {
 public:
  /// The first and last node of a module.
  struct Extent {
    std::size_t first = 0;  ///< node
    std::size_t last = 0;
    bool is_exact = false;  ///< named by scope()
  };

  explicit ModuleExtents(const Graph& graph);

  /// Nothing if there is no module of that name.
  std::optional<Extent> find(std::string_view name) const;
  /// The same, but ArgumentError if there is none. The message has the nearest names.
  Extent get(std::string_view name) const;
  /// All names, in the order of their first nodes.
  std::vector<std::string> names() const;

  /// The least depth at which two numbered modules have the same parent (`layers.0` and `layers.1`
  /// have depth 2), and at least 2.
  std::size_t layer_depth() const;

  /// The last node before `node` that reads a parameter or buffer of a different module than
  /// `name`; nothing if there is none.
  std::optional<std::size_t> last_other_before(std::size_t node, std::string_view name) const;
  /// The first such node after `node`.
  std::optional<std::size_t> first_other_after(std::size_t node, std::string_view name) const;

  /// The innermost module whose parameter the node reads; otherwise the scope of the node;
  /// otherwise empty.
  const std::string& module_at(std::size_t node) const { return module_at_[node]; }

 private:
  void add(const std::string& name, std::size_t node, bool is_exact);
  bool is_other(std::size_t node, std::string_view name) const;

  std::map<std::string, Extent, std::less<>> extents_;
  std::vector<std::vector<std::string>> read_at_;  // names of states, by node
  std::vector<std::string> module_at_;
};

}  // namespace stagecraft
