#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/ivalue.h>

namespace stagecraft {

/// The structure of a value tree without its leaves: which tuples, lists and dicts it is made of.
/// Immutable. Copies share one structure.
///
/// Two specs are equal when they nest the same kinds with the same sizes and names. The order of a
/// dict's keys does not count, and neither do element types, which a spec only remembers so that
/// unflatten can restore them. A named tuple is a tuple: its names are not kept (torch creates the
/// type of a tuple on first request without a lock, so reading the names of a shared tuple is a
/// data race).
class TreeSpec {
 public:
  /// The kind of a node of a tree.
  enum class Kind : uint8_t { kLeaf, kTuple, kList, kDict };

  /// The types that unflatten restores in addition to the structure. Empty for specs that did not
  /// come from a value: then element types are inferred from the leaves.
  struct Origin {
    c10::TypePtr key_type;
    c10::TypePtr element_type;
  };

  /// A leaf.
  TreeSpec() = default;
  static TreeSpec leaf() { return {}; }
  static TreeSpec tuple(std::vector<TreeSpec> children);
  static TreeSpec list(std::vector<TreeSpec> children, Origin origin = {});
  /// In insertion order: one key a child, no key twice (ArgumentError).
  static TreeSpec dict(const std::vector<std::string>& keys, std::vector<TreeSpec> children);
  /// The same with keys that are known to be distinct strings: those of a dict.
  static TreeSpec dict_of(std::vector<c10::IValue> keys, std::vector<TreeSpec> children,
                          Origin origin);

  Kind kind() const;
  bool is_leaf() const { return node_ == nullptr; }
  std::size_t num_leaves() const;
  std::span<const TreeSpec> children() const;
  /// The key of a dict's child. REQUIRES a dict and child < children().size().
  const std::string& key(std::size_t child) const { return key_value(child).toStringRef(); }
  /// The key as a c10::IValue, so that dicts can be made without copying their keys.
  const c10::IValue& key_value(std::size_t child) const;
  /// Empty for leaves.
  const Origin& origin() const;

  /// The path of leaf number `leaf` of this spec: `args[1]["mask"]` for the root "args".
  /// ArgumentError unless leaf < num_leaves().
  std::string leaf_path(std::size_t leaf, std::string_view root) const;

  friend bool operator==(const TreeSpec& a, const TreeSpec& b);

 private:
  struct Node;
  explicit TreeSpec(std::shared_ptr<const Node> node) : node_(std::move(node)) {}
  static TreeSpec make(Kind kind, std::vector<c10::IValue> keys, std::vector<TreeSpec> children,
                       Origin origin);

  std::shared_ptr<const Node> node_;
};

/// One step of a path: `[1]` or `["mask"]`.
std::string path_step(const TreeSpec& spec, std::size_t child);

/// "leaf", "tuple of 3", "list of 1", "dict of 2".
std::string describe_kind(const TreeSpec& spec);

/// Trees and texts that nest deeper than this are refused, because the walk of a list that contains
/// itself would not end.
inline constexpr int kMaxTreeDepth = 256;

}  // namespace stagecraft
