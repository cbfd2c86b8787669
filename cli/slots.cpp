// stagecraft slots: which activations of a rank can share a buffer.

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/failure.h"
#include "cli/input.h"
#include "cli/output.h"
#include "cli/report.h"
#include "cli/schedule_text.h"
#include "stagecraft/schedule/activation_slots.h"

namespace stagecraft::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson slots_json(Rank rank, const ActivationSlots& slots) {
  OrderedJson activations = OrderedJson::array();
  for (const auto& each : slots.activations()) {
    activations.push_back({{"stage", each.stage.value()},
                           {"microbatch", each.microbatch.value()},
                           {"slot", each.slot},
                           {"first", each.first},
                           {"last", each.last}});
  }
  return {{"rank", rank.value()}, {"slots", slots.num_slots()}, {"activations", activations}};
}

// One line for each buffer: what is in it, as stage.microbatch, in the order of time.
std::string list_slots(const ActivationSlots& slots) {
  std::vector<ActivationSlots::Activation> all(slots.activations().begin(),
                                               slots.activations().end());
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> lines(static_cast<std::size_t>(slots.num_slots()));
  for (const auto& each : all) {
    lines[static_cast<std::size_t>(each.slot)] +=
        fmt::format(" {}.{}", each.stage.value(), each.microbatch.value());
  }
  std::string text;
  for (std::size_t i = 0; i < lines.size(); ++i) text += fmt::format("slot {}:{}\n", i, lines[i]);
  return text;
}

}  // namespace

int run(const SlotsCommand& command) {
  const Loaded loaded = load(command.source, command.lowering, command.graph);
  const Schedule& schedule = loaded.schedule;
  const bool is_shared = command.granularity == "microbatch";
  if (command.rank && *command.rank >= schedule.num_ranks()) {
    throw BadUsage(fmt::format("there is no rank {}; there are {} ranks", *command.rank,
                               schedule.num_ranks()));
  }
  TextTable table({"rank", "slots", "activations"});
  std::string details;
  OrderedJson ranks = OrderedJson::array();
  for (Rank rank(0); rank.value() < schedule.num_ranks(); ++rank) {
    if (command.rank.value_or(rank.value()) != rank.value()) continue;
    std::optional<ActivationSlots> slots;
    try {
      slots = activation_slots(
          schedule, rank,
          is_shared ? SlotGranularity::kMicrobatch : SlotGranularity::kStageMicrobatch);
    } catch (const ArgumentError& error) {
      throw BadSchedule(fmt::format("{}: {}", loaded.name, error.what()));
    }
    ranks.push_back(slots_json(rank, *slots));
    table.add({std::to_string(rank.value()), std::to_string(slots->num_slots()),
               std::to_string(slots->activations().size())});
    if (command.rank) details = '\n' + list_slots(*slots);
  }
  if (command.json) {
    const OrderedJson json = {{"schedule", loaded.name},
                              {"granularity", command.granularity},
                              {"per_rank", std::move(ranks)}};
    write_output("-", dump(json));
  } else {
    write_output("-", fmt::format("{}: {}\n\n{}{}", loaded.name, describe_shape(schedule),
                                  table.to_string(), details));
  }
  return kGood;
}

}  // namespace stagecraft::cli
