#include <algorithm>
#include <cstdint>
#include <utility>

#include <nlohmann/json.hpp>

#include "stagecraft/base/check.h"
#include "stagecraft/schedule/json_input.h"
#include "stagecraft/sim/cost_keys.h"
#include "stagecraft/sim/file_units.h"

namespace stagecraft {
namespace {

using Json = nlohmann::json;

double get_number(const Json& json, const std::string& where) {
  if (!json.is_number()) {
    throw ArgumentError(fmt::format("{}: expected a number, got {}", where, describe_json(json)));
  }
  return json.get<double>();
}

int32_t get_index(const Json& object, const char* key, const std::string& where) {
  const auto found = object.find(key);
  const bool fits = found != object.end() && found->is_number_unsigned() &&
                    found->get<uint64_t>() <= static_cast<uint64_t>(INT32_MAX);
  require<ArgumentError>(fits, "{}: expected \"{}\", a whole number of at least 0", where, key);
  return found->get<int32_t>();
}

// Visits the elements of an array of objects: `each(object, where)`.
template <typename Each>
void for_each_object(const Json& array, const std::string& name, Each&& each) {
  require<ArgumentError>(array.is_array(), "\"{}\": expected an array of objects", name);
  for (std::size_t i = 0; i < array.size(); ++i) {
    const std::string where = fmt::format("\"{}\", entry {}", name, i);
    require<ArgumentError>(array[i].is_object(), "{}: expected an object", where);
    each(array[i], where);
  }
}

void check_synonyms(const Json& object, const std::string& where) {
  for (const auto& [one, other] : {std::pair("I", "B"), std::pair("MI", "MB")}) {
    require<ArgumentError>(!object.contains(one) || !object.contains(other),
                           "{}: {} and {} mean the same; give one of them", where, one, other);
  }
}

template <typename Cost, typename Set>
void read_members(Cost& cost, const Json& object, const std::string& where,
                  std::initializer_list<std::string_view> others, Set&& set) {
  check_synonyms(object, where);
  for (const auto& [key, value] : object.items()) {
    if (std::find(others.begin(), others.end(), key) != others.end()) continue;
    const double number = get_number(value, fmt::format("{}, \"{}\"", where, key));
    require<ArgumentError>(set(cost, key, number), "{}: there is no cost \"{}\" here", where, key);
  }
}

std::vector<double> read_numbers(const Json& json, const std::string& name) {
  if (!json.is_array()) return {get_number(json, name)};
  std::vector<double> numbers;
  for (const Json& entry : json) numbers.push_back(get_number(entry, name));
  return numbers;
}

void read_stages(CostModel& costs, const Json& array) {
  for_each_object(array, "stages", [&](const Json& object, const std::string& where) {
    StageCost& cost = costs.stages.emplace_back(costs.stage);
    read_members(cost, object, where, {}, set_stage_cost);
  });
}

void read_microbatches(CostModel& costs, const Json& array) {
  for_each_object(array, "microbatches", [&](const Json& object, const std::string& where) {
    const int32_t stage = get_index(object, "stage", where);
    const int32_t microbatch = get_index(object, "microbatch", where);
    const StageCost& base = static_cast<std::size_t>(stage) < costs.stages.size()
                                ? costs.stages[static_cast<std::size_t>(stage)]
                                : costs.stage;
    CostModel::PerMicrobatch entry{StageId(stage), MicrobatchId(microbatch), base};
    read_members(entry.cost, object, where, {"stage", "microbatch"}, set_stage_cost);
    costs.microbatches.push_back(entry);
  });
}

void read_links(CostModel& costs, const Json& array) {
  for_each_object(array, "links", [&](const Json& object, const std::string& where) {
    CostModel::PerLink entry{Rank(get_index(object, "from", where)),
                             Rank(get_index(object, "to", where)), costs.link};
    read_members(entry.cost, object, where, {"from", "to"}, set_link_cost);
    costs.links.push_back(entry);
  });
}

}  // namespace

CostModel parse_cost_file(std::string_view text) {
  Json json = read_json(text);
  require<ArgumentError>(json.is_object(), "a cost file is a JSON object");
  require<ArgumentError>(!json.contains("layers"),
                         "the cost file has \"layers\", which stagecraft plan reads; a "
                         "schedule needs costs of \"stages\"");
  take_units(json);
  check_synonyms(json, "the cost file");
  CostModel costs;
  // Costs for all stages are read first, because the lists refine them.
  for (const auto& [key, value] : json.items()) {
    if (key == "stages" || key == "microbatches" || key == "links") continue;
    if (key == "BYTES") {
      costs.output_bytes = read_numbers(value, "\"BYTES\"");
    } else if (key == "WEIGHTS") {
      costs.weights = read_numbers(value, "\"WEIGHTS\"");
    } else if (key == "G") {
      costs.gather = read_numbers(value, "\"G\"");
    } else if (key == "MG") {
      costs.gathered = read_numbers(value, "\"MG\"");
    } else if (key == "RENDEZVOUS") {
      require<ArgumentError>(value.is_boolean(), "\"RENDEZVOUS\": expected true or false, got {}",
                             describe_json(value));
      costs.rendezvous = value.get<bool>();
    } else if (!set_cost(costs, key, get_number(value, fmt::format("\"{}\"", key)))) {
      throw ArgumentError(fmt::format(
          "there is no cost \"{}\"; there are {}, RENDEZVOUS, stages, microbatches, links", key,
          cost_key_list()));
    }
  }
  if (json.contains("stages")) read_stages(costs, json["stages"]);
  if (json.contains("microbatches")) read_microbatches(costs, json["microbatches"]);
  if (json.contains("links")) read_links(costs, json["links"]);
  return costs;
}

}  // namespace stagecraft
