#include "stagecraft/viz/page_data.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "stagecraft/base/error.h"
#include "stagecraft/schedule/activation_slots.h"
#include "stagecraft/schedule/verify.h"
#include "stagecraft/viz/bars.h"
#include "stagecraft/viz/markup.h"
#include "stagecraft/viz/pack.h"
#include "stagecraft/viz/palette.h"

namespace stagecraft::viz {
namespace {

/// Writes the members of a JSON object.
class Members {
 public:
  void text(std::string_view name, std::string_view value) { add(name, quote_json(value)); }
  void number(std::string_view name, double value) { add(name, exact_text(value)); }
  void numbers(std::string_view name, const std::vector<double>& values) {
    add(name, pack(values));
  }
  void add(std::string_view name, std::string_view json) {
    fmt::format_to(std::back_inserter(out_), "{}\"{}\":{}", out_.empty() ? "" : ",\n", name, json);
  }
  std::string object() const { return "{" + out_ + "}"; }

 private:
  std::string out_;
};

/// One number of every bar (or mark) of every lane.
template <typename Function>
std::vector<double> collect(const std::vector<Lane>& lanes, std::vector<Bar> Lane::*bars,
                            const Function& get) {
  std::vector<double> values;
  for (const Lane& lane : lanes) {
    for (const Bar& bar : lane.*bars) values.push_back(static_cast<double>(get(bar)));
  }
  return values;
}

std::vector<double> counts(const std::vector<Lane>& lanes, std::vector<Bar> Lane::*bars) {
  std::vector<double> values;
  for (const Lane& lane : lanes) values.push_back(static_cast<double>((lane.*bars).size()));
  return values;
}

void add_bars(Members& data, const std::vector<Lane>& lanes) {
  const auto each = [&](const auto& get) { return collect(lanes, &Lane::bars, get); };
  data.numbers("barCounts", counts(lanes, &Lane::bars));
  data.numbers("barStart", each([](const Bar& bar) { return bar.start; }));
  data.numbers("barLength", each([](const Bar& bar) { return bar.end - bar.start; }));
  data.numbers("barType", each([](const Bar& bar) { return static_cast<int>(bar.action.type()); }));
  data.numbers("barStage", each([](const Bar& bar) { return bar.action.stage().value(); }));
  data.numbers("barMicrobatch",
               each([](const Bar& bar) { return bar.action.microbatch().value(); }));
  data.numbers("barChunk", each([](const Bar& bar) { return bar.chunk; }));
  const auto parts = each([](const Bar& bar) { return bar.parts; });
  if (std::any_of(parts.begin(), parts.end(), [](double count) { return count > 1; })) {
    data.numbers("barPart", each([](const Bar& bar) { return bar.part; }));
    data.numbers("barParts", parts);
    data.numbers("runStart", each([](const Bar& bar) { return bar.run.start; }));
    data.numbers("runLength", each([](const Bar& bar) { return bar.run.end - bar.run.start; }));
  }
}

void add_marks(Members& data, const std::vector<Lane>& lanes) {
  const auto each = [&](const auto& get) { return collect(lanes, &Lane::marks, get); };
  data.numbers("markCounts", counts(lanes, &Lane::marks));
  data.numbers("markStart", each([](const Bar& mark) { return mark.start; }));
  data.numbers("markLength", each([](const Bar& mark) { return mark.end - mark.start; }));
  data.numbers("markType",
               each([](const Bar& mark) { return static_cast<int>(mark.action.type()); }));
  data.numbers("markStage", each([](const Bar& mark) { return mark.action.stage().value(); }));
  // One more than the microbatch; 0 for none.
  data.numbers("markMicrobatch", each([](const Bar& mark) {
                 return has_microbatch(mark.action.type())
                            ? static_cast<double>(mark.action.microbatch().value()) + 1
                            : 0;
               }));
}

/// Adds the number of the buffer of each forward's activation, from 1; 0 for other bars. Only for
/// schedules in which every activation ends.
void add_slots(Members& data, const std::vector<Lane>& lanes, const Schedule& schedule) {
  if (schedule.num_stages() == 0 || infer_mode(schedule) != VerifyMode::kTraining) return;
  std::vector<double> counts;
  std::map<std::pair<StageId, MicrobatchId>, int32_t> slot_of;
  try {
    for (Rank rank(0); rank.value() < schedule.num_ranks(); ++rank) {
      const ActivationSlots slots = activation_slots(schedule, rank);
      counts.push_back(slots.num_slots());
      for (const auto& each : slots.activations()) {
        slot_of[{each.stage, each.microbatch}] = each.slot + 1;
      }
    }
  } catch (const ArgumentError&) {
    return;  // a piece of a schedule
  }
  data.numbers("rankSlots", counts);
  data.numbers("barSlot", collect(lanes, &Lane::bars, [&](const Bar& bar) {
                 const Action action = bar.action;
                 if (action.type() != ActionType::kForward) return 0;
                 return slot_of.at({action.stage(), action.microbatch()});
               }));
}

void add_memory(Members& data, const Simulation& simulation) {
  std::vector<double> sizes;
  std::vector<double> times;
  std::vector<double> values;
  for (const auto& samples : simulation.memory) {
    sizes.push_back(static_cast<double>(samples.size()));
    for (const MemorySample& sample : samples) {
      times.push_back(sample.time);
      values.push_back(sample.memory);
    }
  }
  data.numbers("memoryCounts", sizes);
  data.numbers("memoryTime", times);
  data.numbers("memoryValue", values);
}

void add_ranks(Members& data, const Simulation& simulation) {
  const auto each = [&](double RankStats::*member) {
    std::vector<double> values;
    for (const RankStats& stats : simulation.ranks) values.push_back(stats.*member);
    return values;
  };
  data.numbers("rankBusy", each(&RankStats::busy));
  data.numbers("rankBubble", each(&RankStats::bubble));
  data.numbers("rankExposed", each(&RankStats::exposed_transfer));
  data.numbers("rankPeak", each(&RankStats::peak_memory));
}

/// The critical path as numbers of bars; steps that are no bars are left out.
void add_path(Members& data, const std::vector<Lane>& lanes, const Simulation& simulation) {
  std::vector<std::map<std::size_t, std::size_t>> wanted(lanes.size());
  for (const PathStep& step : simulation.critical_path) {
    const auto rank = step.rank.position();
    if (rank < wanted.size()) wanted[rank][step.offset] = SIZE_MAX;
  }
  std::size_t number = 0;
  for (std::size_t rank = 0; rank < lanes.size(); ++rank) {
    for (const Bar& bar : lanes[rank].bars) {
      const auto found = wanted[rank].find(bar.offset);
      if (found != wanted[rank].end()) found->second = number;
      // A step may be an overlap, which comes directly before its parts in the list.
      const auto whole = wanted[rank].find(bar.offset - 1);
      if (bar.parts > 1 && bar.part == 0 && whole != wanted[rank].end()) whole->second = number;
      ++number;
    }
  }
  std::vector<double> path;
  for (const PathStep& step : simulation.critical_path) {
    const auto rank = step.rank.position();
    if (rank >= wanted.size()) continue;
    const std::size_t bar = wanted[rank][step.offset];
    if (bar != SIZE_MAX) path.push_back(static_cast<double>(bar));
  }
  data.numbers("path", path);
}

/// {"1": {"F": [["#3e78be","#ffffff"]], ...}}: by the number of stages on the rank, type and stage.
std::string palette_json(const std::vector<Lane>& lanes) {
  std::set<int32_t> sizes = {1};
  for (const Lane& lane : lanes) sizes.insert(lane.chunks);
  Members by_size;
  for (const int32_t chunks : sizes) {
    Members by_type;
    for (const ActionType type : kBarTypes) {
      std::vector<std::string> colors;
      for (int32_t chunk = 0; chunk < chunks; ++chunk) {
        const Rgb color = bar_color(type, chunk, chunks);
        colors.push_back(fmt::format("[\"{}\",\"{}\"]", to_hex(color), to_hex(text_color(color))));
      }
      by_type.add(to_string(type), fmt::format("[{}]", fmt::join(colors, ",")));
    }
    by_size.add(std::to_string(chunks), by_type.object());
  }
  return by_size.object();
}

std::string names_json() {
  std::vector<std::string> names;
  for (int type = 0; type < static_cast<int>(ActionType::kIdle); ++type) {
    names.push_back(quote_json(to_string(static_cast<ActionType>(type))));
  }
  return fmt::format("[{}]", fmt::join(names, ","));
}

std::string plan_json(const Schedule& schedule, const Simulation& plan) {
  Members data;
  data.number("makespan", plan.makespan);
  data.number("bubble", plan.bubble);
  add_bars(data, lay_out(schedule, plan, "plan"));
  return data.object();
}

}  // namespace

std::string page_data(const Schedule& schedule, const Simulation& simulation,
                      const StageGraph& graph, const HtmlOptions& options) {
  const std::vector<Lane> lanes = lay_out(schedule, simulation);
  Members data;
  data.text("title", options.title);
  data.text("subtitle", options.subtitle);
  data.text("level", to_string(schedule.level()));
  if (options.real_units) data.add("realUnits", "true");
  data.number("ranks", schedule.num_ranks());
  data.number("stages", schedule.num_stages());
  data.number("microbatches", schedule.num_microbatches());
  data.number("makespan", simulation.makespan);
  data.number("span", simulation.span);
  data.number("bubble", simulation.bubble);
  data.number("exposed", simulation.exposed_transfer);
  data.number("transfers", static_cast<double>(simulation.transfers));
  data.number("peak", simulation.peak_memory);
  data.add("names", names_json());
  data.add("palette", palette_json(lanes));
  std::vector<double> chunks;
  for (const Lane& lane : lanes) chunks.push_back(lane.chunks);
  data.numbers("laneChunks", chunks);
  add_bars(data, lanes);
  add_marks(data, lanes);
  add_slots(data, lanes, schedule);
  add_memory(data, simulation);
  add_ranks(data, simulation);
  add_path(data, lanes, simulation);
  if (options.plan != nullptr) data.add("plan", plan_json(schedule, *options.plan));
  std::vector<double> from;
  std::vector<double> to;
  for (const StageEdge& edge : graph.edges()) {
    from.push_back(edge.from.value());
    to.push_back(edge.to.value());
  }
  data.numbers("edgeFrom", from);
  data.numbers("edgeTo", to);
  return data.object();
}

}  // namespace stagecraft::viz
