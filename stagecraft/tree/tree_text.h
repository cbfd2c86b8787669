#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "stagecraft/base/text_cursor.h"
#include "stagecraft/tree/tree_spec.h"

namespace stagecraft {

/// The short text of a structure. A leaf is `*`; the rest reads as one would write it in Python:
///
///   (*, [*, *], {"mask": *, "ids": (*,)})
///
/// parse_tree_spec(to_text(spec)) == spec.
std::string to_text(const TreeSpec& spec);

/// The inverse of to_text. Space between tokens is free. Throws ParseError.
TreeSpec parse_tree_spec(std::string_view text);

/// The same with other texts for the leaves; `leaf_text` gets the leaf's number.
std::string to_text(const TreeSpec& spec, const std::function<std::string(std::size_t)>& leaf_text);

/// The same with other texts for the leaves; `read_leaf` is called for each leaf in order, must
/// pass its text and must not accept one that starts with `(`, `[` or `{`.
TreeSpec parse_tree_spec(std::string_view text, const std::function<void(TextCursor&)>& read_leaf);
/// The same inside a longer text: reads up to the end of the structure.
TreeSpec read_tree_spec(TextCursor& in, const std::function<void(TextCursor&)>& read_leaf);

}  // namespace stagecraft
