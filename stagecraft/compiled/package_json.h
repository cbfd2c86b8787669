#pragma once

#include <nlohmann/json_fwd.hpp>

#include "stagecraft/compiled/package.h"

namespace stagecraft::detail {

/// The description of a package. FileError, with the path inside the description, for a text that
/// is not such a description: fields that are missing or of the wrong kind, slots that refer to
/// parameters or values that do not exist.
PackageInfo package_info_of(const nlohmann::json& text);

}  // namespace stagecraft::detail
