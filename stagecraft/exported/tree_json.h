#pragma once

#include <string>

#include "stagecraft/tree/tree_spec.h"

namespace stagecraft::exported {

/// Reads the structure of arguments or outputs as Python's pytree writes it: tuples (named ones
/// too), lists, dicts of any kind; classes that give names to their members, as the outputs of
/// Hugging Face models, are dicts, others tuples. FileError for a text that is none.
TreeSpec read_tree(const std::string& json, const std::string& what);

}  // namespace stagecraft::exported
