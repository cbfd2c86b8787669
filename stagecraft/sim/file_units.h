#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace stagecraft {

/// The units that the numbers of a cost file have.
struct FileUnits {
  std::string time = {};  ///< "ms", "us", ...; empty if no time has a unit
  bool bytes = false;     ///< some memory has a unit, so that all memory is in bytes
};

/// Replaces every text that is a number with a unit by its number, except below "name". A file has
/// one unit of time: ArgumentError, with both, for a second one. Other texts stay.
FileUnits take_units(nlohmann::json& json);

}  // namespace stagecraft
