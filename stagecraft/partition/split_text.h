#pragma once

#include <string_view>

#include "stagecraft/partition/split.h"

namespace stagecraft {

/// Split points as text: names of modules, separated by commas. `NAME` splits at the beginning of
/// the module, `NAME:end` at its end: "layers.4,head:end". ArgumentError for an empty name.
Split parse_split(std::string_view text);

}  // namespace stagecraft
