#pragma once

#include <string>

#include "stagecraft/tree/tree_spec.h"

namespace stagecraft::exported {

/// Parses the structure of arguments or outputs in the form of Python's pytree: tuples, named
/// tuples, lists, dicts of any kind. Classes with named members, such as the outputs of Hugging
/// Face models, become dicts, other classes tuples. FileError for text that is not such a
/// structure.
TreeSpec read_tree(const std::string& json, const std::string& what);

}  // namespace stagecraft::exported
