#pragma once

#include <string_view>

/// The version of these headers, for the preprocessor. It is only defined here: CMake reads this
/// file.
#define STAGECRAFT_VERSION_MAJOR 0
#define STAGECRAFT_VERSION_MINOR 1
#define STAGECRAFT_VERSION_PATCH 0
/// The version as one number, for comparisons: 0.1.0 is 100, 1.2.3 is 10203.
#define STAGECRAFT_VERSION \
  (STAGECRAFT_VERSION_MAJOR * 10000 + STAGECRAFT_VERSION_MINOR * 100 + STAGECRAFT_VERSION_PATCH)

namespace stagecraft {

/// The version of the library that is linked, as "0.1.0".
std::string_view version();

}  // namespace stagecraft
