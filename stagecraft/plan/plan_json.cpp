#include "stagecraft/plan/plan_json.h"

#include <cmath>

#include <nlohmann/json.hpp>

#include "stagecraft/base/check.h"
#include "stagecraft/schedule/json_input.h"

namespace stagecraft::plan {

const nlohmann::json& plan_member(const nlohmann::json& json, const char* key) {
  const auto found = json.find(key);
  require<ArgumentError>(found != json.end(), "a plan has the member \"{}\"", key);
  return *found;
}

double plan_number(const nlohmann::json& json, const char* key) {
  const nlohmann::json& value = plan_member(json, key);
  require<ArgumentError>(
      value.is_number() && std::isfinite(value.get<double>()) && value.get<double>() >= 0,
      "\"{}\": expected a number of at least 0, got {}", key, describe_json(value));
  return value.get<double>();
}

int64_t plan_whole(const nlohmann::json& json, const char* key, int64_t least, int64_t most) {
  const nlohmann::json& value = plan_member(json, key);
  const bool fits = value.is_number_unsigned() &&
                    value.get<uint64_t>() <= static_cast<uint64_t>(most) &&
                    value.get<int64_t>() >= least;
  require<ArgumentError>(fits, "\"{}\": expected a whole number from {} to {}, got {}", key, least,
                         most, describe_json(value));
  return value.get<int64_t>();
}

std::string plan_word(const nlohmann::json& json, const char* key) {
  const nlohmann::json& value = plan_member(json, key);
  require<ArgumentError>(value.is_string(), "\"{}\": expected a text, got {}", key,
                         describe_json(value));
  return value.get<std::string>();
}

bool plan_flag(const nlohmann::json& json, const char* key) {
  const nlohmann::json& value = plan_member(json, key);
  require<ArgumentError>(value.is_boolean(), "\"{}\": expected true or false, got {}", key,
                         describe_json(value));
  return value.get<bool>();
}

}  // namespace stagecraft::plan
