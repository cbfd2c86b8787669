#include "stagecraft/viz/bars.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "stagecraft/base/assert.h"
#include "stagecraft/base/check.h"
#include "stagecraft/base/indexed_vector.h"
#include "stagecraft/viz/palette.h"

namespace stagecraft::viz {
namespace {

constexpr double kTolerance = 1e-6;

/// For each stage, its number among the stages of its rank.
IndexedVector<StageId, int32_t> chunks_of(const Placement& placement) {
  IndexedVector<StageId, int32_t> chunk(placement.num_stages());
  for (int32_t r = 0; r < placement.num_ranks(); ++r) {
    int32_t next = 0;
    for (const StageId stage : placement.stages(Rank(r))) chunk[stage] = next++;
  }
  return chunk;
}

}  // namespace

std::vector<Lane> lay_out(const Schedule& schedule, const Simulation& simulation,
                          std::string_view name) {
  const auto ranks = static_cast<std::size_t>(schedule.num_ranks());
  require<ArgumentError>(
      simulation.timeline.size() == ranks,
      "the {} is of a different schedule: it has {} ranks, but the schedule has {}", name,
      simulation.timeline.size(), ranks);
  const IndexedVector<StageId, int32_t> chunk_of = chunks_of(schedule.placement());
  std::vector<Lane> lanes(ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    const Rank rank(static_cast<int32_t>(r));
    const std::vector<Interval>& times = simulation.timeline[r];
    require<ArgumentError>(
        times.size() == schedule.actions(rank).size(),
        "the {} is of a different schedule: rank {} has {} actions in it, but {} in the schedule",
        name, r, times.size(), schedule.actions(rank).size());
    Lane& lane = lanes[r];
    lane.chunks = std::max(1, static_cast<int32_t>(schedule.placement().stages(rank).size()));
    for (const Slot& slot : schedule.slots(rank)) {
      const auto runs = std::span(times).subspan(slot.parts_offset(), slot.parts().size());
      const auto ran = [](const Interval& run) { return run.ran(); };
      const auto parts = std::count_if(runs.begin(), runs.end(), ran);
      int32_t part = 0;
      for (std::size_t i = 0; i < runs.size(); ++i) {
        if (!runs[i].ran()) continue;
        const Action action = slot.parts()[i];
        Bar bar{.start = times[slot.offset()].start,
                .end = times[slot.offset()].end,
                .run = runs[i],
                .action = action,
                .part = part++,
                .parts = static_cast<int32_t>(parts),
                .offset = slot.parts_offset() + i};
        const StageId stage = action.stage();
        if (chunk_of.contains(stage)) bar.chunk = chunk_of[stage];
        (is_compute(action.type()) ? lane.bars : lane.marks).push_back(bar);
      }
    }
    const auto earlier = [](const Bar& a, const Bar& b) { return a.start < b.start; };
    std::stable_sort(lane.bars.begin(), lane.bars.end(), earlier);
    std::stable_sort(lane.marks.begin(), lane.marks.end(), earlier);
  }
  return lanes;
}

std::string beside_plan(std::string (*text)(double), double Simulation::*member,
                        const Simulation& simulation, const Simulation* plan) {
  const std::string own = text(simulation.*member);
  return plan == nullptr ? own : fmt::format("{} (plan {})", own, text(plan->*member));
}

std::vector<ActionType> used_types(std::span<const Lane> lanes) {
  std::array<bool, 256> used{};
  for (const Lane& lane : lanes) {
    for (const Bar& bar : lane.bars) used[static_cast<uint8_t>(bar.action.type())] = true;
  }
  std::vector<ActionType> types;
  for (const ActionType type : kBarTypes) {
    if (used[static_cast<uint8_t>(type)]) types.push_back(type);
  }
  return types;
}

std::vector<Interval> long_waits(const Lane& lane) {
  std::vector<Interval> waits;
  for (const Bar& mark : lane.marks) {
    if (is_wait(mark.action.type()) && mark.run.end > mark.run.start) waits.push_back(mark.run);
  }
  return waits;
}

bool has_long_waits(std::span<const Lane> lanes) {
  return std::any_of(lanes.begin(), lanes.end(),
                     [](const Lane& lane) { return !long_waits(lane).empty(); });
}

int32_t most_chunks(std::span<const Lane> lanes) {
  int32_t most = 1;
  for (const Lane& lane : lanes) most = std::max(most, lane.chunks);
  return most;
}

std::optional<double> find_step(std::span<const Lane> lanes, double makespan, int64_t max_steps) {
  if (makespan <= 0 || max_steps <= 0) return std::nullopt;
  // Euclid's algorithm on times. A remainder below the smallest step of interest is rounding.
  const double smallest = makespan / static_cast<double>(max_steps);
  double step = 0;
  const auto add = [&](double time) {
    double a = std::max(step, time);
    double b = std::min(step, time);
    while (b > smallest * kTolerance) {
      const double rest = std::fmod(a, b);
      a = b;
      b = rest;
    }
    step = a;
    return step > smallest * (1 - kTolerance);
  };
  for (const Lane& lane : lanes) {
    for (const Bar& bar : lane.bars) {
      if ((bar.start > 0 && !add(bar.start)) || (bar.end > 0 && !add(bar.end))) return std::nullopt;
    }
  }
  if (step <= 0) return std::nullopt;
  return step;
}

std::size_t Column::most() const {
  SC_ASSERT(busy() > 0);
  return static_cast<std::size_t>(std::max_element(share.begin(), share.end()) - share.begin());
}

std::vector<Column> sample_columns(const Lane& lane, double makespan, int64_t columns) {
  std::vector<Column> result(static_cast<std::size_t>(std::max<int64_t>(columns, 0)));
  if (makespan <= 0 || result.empty()) return result;
  const double width = makespan / static_cast<double>(columns);
  for (const Bar& bar : lane.bars) {
    const auto type = static_cast<std::size_t>(bar.action.type());
    auto c = std::clamp<int64_t>(static_cast<int64_t>(bar.start / width), 0, columns - 1);
    for (; c < columns; ++c) {
      const double left = static_cast<double>(c) * width;
      if (left >= bar.end) break;
      const double covered = std::min(bar.end, left + width) - std::max(bar.start, left);
      if (covered <= width * kTolerance) continue;
      Column& column = result[c];
      column.share[type] += covered / width / bar.parts;
      if (column.first[type] == nullptr) column.first[type] = &bar;
    }
  }
  return result;
}

}  // namespace stagecraft::viz
