#pragma once

#include <string_view>

namespace stagecraft {

/// What names of values, nodes and regions of a graph consist of.
inline constexpr std::string_view kNameCharacters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-/$#+*<>@~|^&;?!";

inline bool is_name(std::string_view text) {
  return !text.empty() && text.find_first_not_of(kNameCharacters) == std::string_view::npos;
}

}  // namespace stagecraft
