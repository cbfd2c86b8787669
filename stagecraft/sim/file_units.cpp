#include "stagecraft/sim/file_units.h"

#include <optional>

#include <nlohmann/json.hpp>

#include "stagecraft/base/check.h"
#include "stagecraft/sim/quantity.h"

namespace stagecraft {
namespace {

std::optional<Quantity> find_quantity(const std::string& text) {
  try {
    return parse_quantity(text);
  } catch (const ArgumentError&) {
    return std::nullopt;
  }
}

void take_units_of(nlohmann::json& json, FileUnits& units) {
  if (json.is_structured()) {
    for (auto& [key, value] : json.items()) {
      if (key != "name") take_units_of(value, units);
    }
    return;
  }
  if (!json.is_string()) return;
  const std::optional<Quantity> quantity = find_quantity(json.get_ref<const std::string&>());
  if (!quantity || quantity->kind == QuantityKind::kPlain) return;
  if (quantity->kind == QuantityKind::kTime) {
    require<ArgumentError>(units.time.empty() || units.time == quantity->unit,
                           "a cost file has one unit of time; this one has {} and {}", units.time,
                           quantity->unit);
    units.time = quantity->unit;
  } else {
    units.bytes = true;
  }
  json = quantity->value;
}

}  // namespace

FileUnits take_units(nlohmann::json& json) {
  FileUnits units;
  take_units_of(json, units);
  return units;
}

}  // namespace stagecraft
