#include "stagecraft/viz/trace.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string_view>

#include <fmt/format.h>

#include "stagecraft/viz/bars.h"
#include "stagecraft/viz/links.h"
#include "stagecraft/viz/markup.h"

namespace stagecraft {
namespace {

using viz::exact_text;

// Tracks of a rank. An overlap is one slice, and its parts are on tracks of their own, because
// slices of one track must not overlap.
constexpr int kComputeTrack = 0;
constexpr int kTransferTrack = 1;
constexpr int kPlanTrack = 2;
constexpr int kPartTracks = 10;

class Writer {
 public:
  explicit Writer(std::string& out) : out_(out) {}

  template <typename... Args>
  void event(fmt::format_string<Args...> format, Args&&... args) {
    out_ += first_ ? "\n  " : ",\n  ";
    first_ = false;
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }

  void name_process(std::size_t rank) {
    event(R"({{"name":"process_name","ph":"M","pid":{0},"tid":0,"args":{{"name":"rank {0}"}}}})",
          rank);
    event(
        R"({{"name":"process_sort_index","ph":"M","pid":{0},"tid":0,"args":{{"sort_index":{0}}}}})",
        rank);
  }
  void name_track(std::size_t rank, int track, std::string_view name) {
    event(R"({{"name":"thread_name","ph":"M","pid":{},"tid":{},"args":{{"name":"{}"}}}})", rank,
          track, name);
    event(R"({{"name":"thread_sort_index","ph":"M","pid":{},"tid":{},"args":{{"sort_index":{}}}}})",
          rank, track, track);
  }

  void slice(std::size_t rank, int track, std::string_view name, std::string_view category,
             const Interval& time, std::string_view args) {
    event(R"({{"name":"{}","cat":"{}","ph":"X","ts":{},"dur":{},"pid":{},"tid":{},"args":{{{}}}}})",
          name, category, exact_text(time.start), exact_text(time.end - time.start), rank, track,
          args);
  }

 private:
  std::string& out_;
  bool first_ = true;
};

std::string arguments(Action action) {
  std::string args =
      fmt::format(R"("type":"{}","stage":{})", to_string(action.type()), action.stage().value());
  if (has_microbatch(action.type())) {
    args += fmt::format(R"(,"microbatch":{})", action.microbatch().value());
  }
  return args;
}

std::string_view category(ActionType type) {
  if (is_compute(type)) return "computation";
  return type == ActionType::kReshard ? "memory" : "communication";
}

int track_of(const viz::Bar& bar) {
  return bar.parts > 1 ? kPartTracks + bar.part : kComputeTrack;
}

/// "2F3 | 5B1": all parts of the overlap whose first part is bar `i`.
std::string overlap_name(const viz::Lane& lane, std::size_t i) {
  std::string name;
  for (int32_t part = 0; part < lane.bars[i].parts; ++part) {
    name += (part == 0 ? "" : " | ") + to_string(lane.bars[i + part].action);
  }
  return name;
}

void write_rank(Writer& writer, std::size_t rank, const viz::Lane& lane) {
  int32_t parts = 1;
  for (const viz::Bar& bar : lane.bars) parts = std::max(parts, bar.parts);
  writer.name_process(rank);
  writer.name_track(rank, kComputeTrack, "compute");
  if (!lane.marks.empty()) writer.name_track(rank, kTransferTrack, "transfers");
  for (int32_t part = 0; parts > 1 && part < parts; ++part) {
    writer.name_track(rank, kPartTracks + part, fmt::format("overlap, part {}", part));
  }

  for (std::size_t i = 0; i < lane.bars.size(); ++i) {
    const viz::Bar& bar = lane.bars[i];
    if (bar.parts > 1 && bar.part == 0) {
      writer.slice(rank, kComputeTrack, overlap_name(lane, i), "computation", {bar.start, bar.end},
                   R"("type":"OVERLAP_F_B")");
    }
    writer.slice(rank, track_of(bar), to_string(bar.action), "computation", bar.run,
                 arguments(bar.action));
  }
  for (const viz::Bar& mark : lane.marks) {
    writer.slice(rank, kTransferTrack, to_string(mark.action), category(mark.action.type()),
                 mark.run, arguments(mark.action));
  }
}

/// An overlap is one slice: the plan has one track.
void write_plan(Writer& writer, std::size_t rank, const viz::Lane& lane) {
  writer.name_track(rank, kPlanTrack, "plan");
  for (std::size_t i = 0; i < lane.bars.size(); ++i) {
    const viz::Bar& bar = lane.bars[i];
    if (bar.part > 0) continue;
    const bool is_overlap = bar.parts > 1;
    writer.slice(rank, kPlanTrack, is_overlap ? overlap_name(lane, i) : to_string(bar.action),
                 "plan", {bar.start, bar.end},
                 is_overlap ? R"("type":"OVERLAP_F_B")" : arguments(bar.action));
  }
}

/// An arrow is bound to the slice that contains its time. The middle of a bar belongs to one slice
/// only.
double middle(const viz::Bar& bar) {
  return bar.run.start + (bar.run.end - bar.run.start) / 2;
}

}  // namespace

std::string draw_trace(const Schedule& schedule, const Simulation& simulation,
                       const StageGraph& graph, const std::string& title, const Simulation* plan) {
  const std::vector<viz::Lane> lanes = viz::lay_out(schedule, simulation);
  std::string out = fmt::format(
      R"({{"displayTimeUnit":"ms","otherData":{{"title":{},"makespan":{},"bubble":{}{}}},"traceEvents":[)",
      viz::quote_json(title), exact_text(simulation.makespan), exact_text(simulation.bubble),
      plan == nullptr ? "" : fmt::format(R"(,"planned_makespan":{})", exact_text(plan->makespan)));
  Writer writer(out);
  for (std::size_t rank = 0; rank < lanes.size(); ++rank) write_rank(writer, rank, lanes[rank]);
  if (plan != nullptr) {
    const std::vector<viz::Lane> planned = viz::lay_out(schedule, *plan, "plan");
    for (std::size_t rank = 0; rank < planned.size(); ++rank) {
      write_plan(writer, rank, planned[rank]);
    }
  }

  std::size_t id = 0;
  for (const viz::Link& link : viz::find_links(lanes, graph)) {
    const std::string_view name =
        link.from->action.type() == ActionType::kForward ? "activation" : "gradient";
    writer.event(
        R"({{"name":"{}","cat":"communication","ph":"s","id":{},"ts":{},"pid":{},"tid":{}}})", name,
        id, exact_text(middle(*link.from)), link.from_rank, track_of(*link.from));
    writer.event(
        R"({{"name":"{}","cat":"communication","ph":"f","bp":"e","id":{},"ts":{},"pid":{},"tid":{}}})",
        name, id, exact_text(middle(*link.to)), link.to_rank, track_of(*link.to));
    ++id;
  }

  for (std::size_t rank = 0; rank < simulation.memory.size(); ++rank) {
    for (const MemorySample& sample : simulation.memory[rank]) {
      writer.event(R"({{"name":"memory","ph":"C","ts":{},"pid":{},"tid":0,"args":{{"held":{}}}}})",
                   exact_text(sample.time), rank, exact_text(sample.memory));
    }
  }
  out += "\n]}\n";
  return out;
}

std::string draw_trace(const Schedule& schedule, const Simulation& simulation) {
  return draw_trace(schedule, simulation, StageGraph::chain(std::max(schedule.num_stages(), 1)));
}

}  // namespace stagecraft
