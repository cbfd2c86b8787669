#pragma once

#include <string_view>

namespace stagecraft {

/// The version of the library that is linked, as "0.1.0".
std::string_view version();

}  // namespace stagecraft
