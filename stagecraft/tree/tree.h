#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/tree/tree_match.h"
#include "stagecraft/tree/tree_spec.h"

/// Value trees. A tree is a c10::IValue made of tuples, lists and dicts with string keys; all else
/// is a leaf: tensors, numbers, strings, None, opaque values. Typed lists (such as int[]) are lists
/// too. Dicts keep their insertion order and are matched by key, never by position.
///
///   auto batch = tree::dict({{"ids", ids}, {"mask", c10::IValue()}});
///   auto on_gpu = tree::map(batch, [&](const c10::IValue& leaf) {
///     return leaf.isTensor() ? c10::IValue(leaf.toTensor().to(device)) : leaf;
///   });
namespace stagecraft::tree {

// Making trees ----------------------------------------------------------------------------------

/// A tuple of values.
c10::IValue tuple(std::vector<c10::IValue> elements);
/// A list whose element type is that of the elements where they agree, otherwise Any.
c10::IValue list(std::vector<c10::IValue> elements);
/// Throws ArgumentError if a key appears twice.
c10::IValue dict(std::vector<std::pair<std::string, c10::IValue>> entries);

// Taking them apart and putting them together -----------------------------------------------------

/// A flattened tree: its leaves from left to right, and its structure.
struct Flat {
  std::vector<c10::IValue> leaves;
  TreeSpec spec;
};

/// Leaves from left to right (a dict's in insertion order). Throws ArgumentError for a dict with a
/// key that is not a string and for trees that nest deeper than kMaxTreeDepth; `root` names the
/// tree in the message.
Flat flatten(const c10::IValue& tree, std::string_view root = "tree");

/// The inverse of flatten. Element types of lists and dicts are kept where the new leaves have
/// them, otherwise they become those of the leaves, or Any. Throws ArgumentError unless there are
/// spec.num_leaves() leaves.
c10::IValue unflatten(const TreeSpec& spec, std::vector<c10::IValue> leaves);
/// The same; moves out of `leaves`.
c10::IValue unflatten(const TreeSpec& spec, std::span<c10::IValue> leaves);

/// The leaves of `tree` in the order of `spec`, whose structure it must have: the fast way to take
/// apart many trees of one structure. Throws MetadataError that names the path of the first
/// difference, as `match` does.
std::vector<c10::IValue> flatten_as(const TreeSpec& spec, const c10::IValue& tree,
                                    std::string_view root = "tree",
                                    Sequences sequences = Sequences::kExact);

/// The leaves alone.
std::vector<c10::IValue> leaves(const c10::IValue& tree);

// Walking them ------------------------------------------------------------------------------------

using MapFn = std::function<c10::IValue(const c10::IValue& leaf)>;
using PathFn = std::function<c10::IValue(const std::string& path, const c10::IValue& leaf)>;

/// The same structure with fn(leaf) instead of each leaf.
c10::IValue map(const c10::IValue& tree, const MapFn& fn);
/// The same, with each leaf's path, as `args[1]["mask"]` for the root "args".
c10::IValue map_with_path(const c10::IValue& tree, std::string_view root, const PathFn& fn);
/// The pairs of leaves at the same places, in the order of `a`. Throws MetadataError that names the
/// path of the first difference in structure.
std::vector<std::pair<c10::IValue, c10::IValue>> zip(const c10::IValue& a, const c10::IValue& b,
                                                     std::string_view root = "tree");

// Comparing them ----------------------------------------------------------------------------------

/// Whether two leaves hold the same value: tensors by dtype, device, shape and elements (sparse,
/// nested and meta tensors only if they are the same tensor); NaN equals NaN; opaque leaves by
/// Opaque::equals; kinds never mix (1 is not 1.0 and not True).
bool leaf_equal(const c10::IValue& a, const c10::IValue& b);
/// The same structure with equal leaves.
bool equal(const c10::IValue& a, const c10::IValue& b);

}  // namespace stagecraft::tree
