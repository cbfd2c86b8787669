#include "stagecraft/schedule/json.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "stagecraft/base/check.h"
#include "stagecraft/base/text_cursor.h"
#include "stagecraft/schedule/json_input.h"
#include "stagecraft/schedule/text.h"

namespace stagecraft {
namespace {

using Json = nlohmann::json;
constexpr int kVersion = 1;

const Json& get(const Json& object, const char* key) {
  const auto found = object.find(key);
  require<ArgumentError>(found != object.end(), "a schedule in JSON has the member \"{}\"", key);
  return *found;
}

ActionList read_list(const Json& json, std::size_t rank) {
  require<ArgumentError>(json.is_array(), "\"actions\" of rank {}: expected an array of texts",
                         rank);
  ActionList list;
  for (std::size_t i = 0; i < json.size(); ++i) {
    require<ArgumentError>(json[i].is_string(), "\"actions\" of rank {}, slot {}: expected a text",
                           rank, i);
    const auto& text = json[i].get_ref<const std::string&>();
    ActionList slot;
    try {
      if (text.empty()) {
        slot.emplace_back();
      } else {
        slot = parse_actions(text);
      }
    } catch (const ParseError& error) {
      throw ArgumentError(
          fmt::format("\"actions\" of rank {}, slot {}: {}", rank, i, error.what()));
    }
    const SlotRange slots(slot);
    if (slots.begin() == slots.end() || std::next(slots.begin()) != slots.end()) {
      throw ArgumentError(fmt::format(
          "\"actions\" of rank {}, slot {}: expected one action, got {}", rank, i, quote(text)));
    }
    list.insert(list.end(), slot.begin(), slot.end());
  }
  return list;
}

Placement read_placement(const Json& json, std::size_t ranks) {
  require<ArgumentError>(json.is_array(), "\"placement\": expected an array with a rank a stage");
  std::vector<std::optional<Rank>> rank_of;
  for (const Json& entry : json) {
    if (entry.is_null()) {
      rank_of.emplace_back();
      continue;
    }
    const bool fits = entry.is_number_unsigned() && entry.get<uint64_t>() < ranks;
    require<ArgumentError>(fits,
                           "\"placement\" of stage {}: expected a rank below {} or null, got {}",
                           rank_of.size(), ranks, describe_json(entry));
    rank_of.emplace_back(Rank(entry.get<int32_t>()));
  }
  return Placement::of(std::move(rank_of), static_cast<int32_t>(ranks));
}

}  // namespace

std::string to_json(const Schedule& schedule) {
  std::string text = fmt::format(
      "{{\"stagecraft\": {}, \"level\": \"{}\", \"ranks\": {}, \"stages\": {}, "
      "\"microbatches\": {},\n \"placement\": [",
      kVersion, to_string(schedule.level()), schedule.num_ranks(), schedule.num_stages(),
      schedule.num_microbatches());
  const char* separator = "";
  for (const Rank rank : schedule.placement().ranks()) {
    text += fmt::format("{}{}", separator, rank == Placement::kNowhere ? "null" : to_string(rank));
    separator = ", ";
  }
  text += "],\n \"actions\": [";
  for (int32_t r = 0; r < schedule.num_ranks(); ++r) {
    text += r == 0 ? "\n  [" : ",\n  [";
    bool first = true;
    for (const Slot& slot : schedule.slots(Rank(r))) {
      text += fmt::format("{}\"{}\"", first ? "" : ", ", to_string(slot));
      first = false;
    }
    text += ']';
  }
  text += "]}\n";
  return text;
}

Schedule parse_json(std::string_view text) {
  Json json = read_json(text);
  require<ArgumentError>(json.is_object(), "a schedule in JSON is an object");
  if (json.contains("stagecraft_plan")) {
    Json schedule = get(json, "schedule");
    require<ArgumentError>(schedule.is_object(), "\"schedule\" of a plan: expected an object");
    json = std::move(schedule);
  }
  require<ArgumentError>(get(json, "stagecraft") == kVersion,
                         "\"stagecraft\": this reads version {}, got {}", kVersion,
                         describe_json(get(json, "stagecraft")));
  const Json& level = get(json, "level");
  require<ArgumentError>(level == "compute" || level == "lowered",
                         "\"level\": expected \"compute\" or \"lowered\", got {}",
                         describe_json(level));
  const Json& actions = get(json, "actions");
  require<ArgumentError>(actions.is_array() && !actions.empty(),
                         "\"actions\": expected an array with a list a rank");
  std::vector<ActionList> lists;
  for (const Json& list : actions) lists.push_back(read_list(list, lists.size()));
  Placement placement = read_placement(get(json, "placement"), lists.size());
  Schedule schedule(level == "compute" ? Level::kCompute : Level::kLowered, std::move(placement),
                    std::move(lists));
  const std::pair<const char*, int32_t> counts[] = {{"ranks", schedule.num_ranks()},
                                                    {"stages", schedule.num_stages()},
                                                    {"microbatches", schedule.num_microbatches()}};
  for (const auto& [key, count] : counts) {
    require<ArgumentError>(get(json, key) == count, "\"{}\" is {}, but the actions have {}", key,
                           describe_json(get(json, key)), count);
  }
  return schedule;
}

}  // namespace stagecraft
