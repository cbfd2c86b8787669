#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace stagecraft::plan {

/// Members of the JSON of a plan file. ArgumentError, which names the member, if it is missing or
/// has a different type or range.
const nlohmann::json& plan_member(const nlohmann::json& json, const char* key);
/// A number of at least 0.
double plan_number(const nlohmann::json& json, const char* key);
int64_t plan_whole(const nlohmann::json& json, const char* key, int64_t least, int64_t most);
std::string plan_word(const nlohmann::json& json, const char* key);
bool plan_flag(const nlohmann::json& json, const char* key);

}  // namespace stagecraft::plan
