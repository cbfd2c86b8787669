#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace stagecraft {

/// The units of the numbers in a cost file.
struct FileUnits {
  std::string time = {};  ///< "ms", "us", ...; empty if no time has a unit
  bool bytes = false;     ///< some memory has a unit, so that all memory is in bytes
};

/// Replaces every text that is a number with a unit by the number, except below "name". Other texts
/// stay. A file has one unit of time: ArgumentError, which names both, for a second one.
FileUnits take_units(nlohmann::json& json);

}  // namespace stagecraft
