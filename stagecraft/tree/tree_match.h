#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/tree/tree_spec.h"

namespace stagecraft::tree {

/// Which structures count as the same.
enum class Sequences {
  kExact,  ///< a tuple matches a tuple, a list matches a list
  kAlike,  ///< any tuple or list matches any tuple or list of its length
};

/// The first place where two structures differ.
struct Difference {
  std::string path;     ///< from the root, as `[1]["mask"]`; empty at the root itself
  std::string message;  ///< "expected tuple of 2, got leaf"
};

/// Nothing when `actual` has the structure of `expected`. Dicts match by key, whatever the order.
std::optional<Difference> find_difference(const TreeSpec& expected, const TreeSpec& actual,
                                          Sequences sequences = Sequences::kExact);

/// For each leaf of `expected`, the number of the leaf of `actual` at the same place. It is not the
/// identity if the keys of a dict have a different order. Throws MetadataError that names the path
/// of the first difference, starting with `root`: `args[1]["mask"]: expected tuple of 2, got leaf`.
std::vector<std::size_t> match(const TreeSpec& expected, const TreeSpec& actual,
                               std::string_view root, Sequences sequences = Sequences::kExact);

}  // namespace stagecraft::tree
