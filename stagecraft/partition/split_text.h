#pragma once

#include <string_view>

#include "stagecraft/partition/split.h"

namespace stagecraft {

/// Split points as a text: names of modules with commas between them, at whose beginnings the model
/// is cut, or with `NAME:end` behind which. "layers.4,head:end". ArgumentError for an empty name.
Split parse_split(std::string_view text);

}  // namespace stagecraft
