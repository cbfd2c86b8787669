#include "stagecraft/viz/trace.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "stagecraft/schedule/passes/lower.h"
#include "tests/viz/support.h"

namespace stagecraft::viz {
namespace {

using Json = nlohmann::json;

Json events(const Case& made) {
  return Json::parse(draw_trace(made.schedule, made.simulation))["traceEvents"];
}

std::vector<Json> of_phase(const Json& all, const std::string& phase) {
  std::vector<Json> found;
  for (const Json& event : all) {
    if (event["ph"] == phase) found.push_back(event);
  }
  return found;
}

TEST(DrawTrace, HasASliceForEachAction) {
  for (const char* name : {"GPipe", "1F1B", "Interleaved1F1B", "ZBVZeroBubble"}) {
    const Case made = make_case(name, 4, 8);
    const auto slices = of_phase(events(made), "X");
    EXPECT_EQ(static_cast<int64_t>(slices.size()), made.schedule.num_actions()) << name;
  }
}

TEST(DrawTrace, SaysWhatWasDoneWhen) {
  const auto slices = of_phase(events(make_case("1F1B", 2, 1)), "X");
  EXPECT_EQ(slices[1], Json::parse(R"({"name": "0B0", "cat": "computation", "ph": "X", "ts": 4,
      "dur": 2, "pid": 0, "tid": 0, "args": {"type": "B", "stage": 0, "microbatch": 0}})"));
}

TEST(DrawTrace, SlicesOfATrackDoNotCross) {
  for (const char* name : {"1F1B", "DualPipeV", "InterleavedZeroBubble"}) {
    CostModel costs;
    costs.overlap = 0.5;
    std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> tracks;
    for (const Json& slice : of_phase(events(make_case(name, 4, 8, costs)), "X")) {
      // An overlap's slice is on the same track as others; its parts are on tracks of their own.
      tracks[{slice["pid"], slice["tid"]}].push_back(
          {slice["ts"], slice["ts"].get<double>() + slice["dur"].get<double>()});
    }
    for (auto& [track, times] : tracks) {
      std::sort(times.begin(), times.end());
      for (std::size_t i = 1; i < times.size(); ++i) {
        EXPECT_GE(times[i].first, times[i - 1].second) << name << " rank " << track.first;
      }
    }
  }
}

TEST(DrawTrace, FlowsGoFromSliceToSlice) {
  const Case made = make_case("DualPipeV", 4, 8);
  const Json all = events(made);
  const auto starts = of_phase(all, "s");
  const auto ends = of_phase(all, "f");
  ASSERT_EQ(static_cast<int64_t>(starts.size()), made.simulation.transfers);
  ASSERT_EQ(starts.size(), ends.size());
  const auto slices = of_phase(all, "X");
  const auto inside = [&](const Json& flow) {
    return std::count_if(slices.begin(), slices.end(), [&](const Json& slice) {
      const double time = flow["ts"];
      return slice["pid"] == flow["pid"] && slice["tid"] == flow["tid"] && slice["ts"] < time &&
             time < slice["ts"].get<double>() + slice["dur"].get<double>();
    });
  };
  for (std::size_t i = 0; i < starts.size(); ++i) {
    EXPECT_EQ(starts[i]["id"], ends[i]["id"]);
    EXPECT_EQ(starts[i]["name"], ends[i]["name"]);
    EXPECT_NE(starts[i]["pid"], ends[i]["pid"]);
    EXPECT_LT(starts[i]["ts"], ends[i]["ts"]);
    EXPECT_EQ(inside(starts[i]), 1);
    EXPECT_EQ(inside(ends[i]), 1);
  }
}

TEST(DrawTrace, HasWaits) {
  std::map<std::string, Json> waits;
  for (const Json& slice : of_phase(events(waiting_case()), "X")) {
    if (count(slice["name"].get<std::string>(), "WAIT_") > 0) waits[slice["name"]] = slice;
  }
  EXPECT_EQ(waits.size(), 6U);
  EXPECT_EQ(waits["0WAIT_SEND_F0"],
            Json::parse(R"({"name": "0WAIT_SEND_F0", "cat": "communication", "ph": "X", "ts": 2,
      "dur": 1, "pid": 0, "tid": 1, "args": {"type": "WAIT_SEND_F", "stage": 0, "microbatch": 0}})"));
  EXPECT_EQ(waits["1WAIT_SEND_B1"]["dur"], 2);
  EXPECT_EQ(waits["1WAIT_REDUCE_GRAD"]["args"],
            Json::parse(R"({"type": "WAIT_REDUCE_GRAD", "stage": 1})"));
}

TEST(DrawTrace, NamesRanksAndTracks) {
  const Case made = make_case("1F1B", 2, 2);
  const Case lowered = [&] {
    Schedule schedule = lower(made.schedule);
    Simulation simulation = simulate(schedule);
    return Case{schedule, simulation};
  }();
  std::map<std::string, int> names;
  for (const Json& event : of_phase(events(lowered), "M")) {
    if (event["args"].contains("name")) ++names[event["args"]["name"]];
  }
  EXPECT_EQ(names, (std::map<std::string, int>{
                       {"rank 0", 1}, {"rank 1", 1}, {"compute", 2}, {"transfers", 2}}));
  std::map<std::string, int> categories;
  for (const Json& slice : of_phase(events(lowered), "X")) ++categories[slice["cat"]];
  EXPECT_EQ(categories["computation"], 8);
  EXPECT_GT(categories["communication"], 8);
}

TEST(DrawTrace, HasATrackOfThePlan) {
  const Case made = make_case("DualPipeV", 2, 4);
  const Simulation run = uneven_run(made.schedule);
  const Json bare = Json::parse(draw_trace(made.schedule, run, StageGraph::chain(4)));
  const Json both =
      Json::parse(draw_trace(made.schedule, run, StageGraph::chain(4), "", &made.simulation));
  EXPECT_EQ(both["otherData"]["planned_makespan"], made.simulation.makespan);
  EXPECT_FALSE(bare["otherData"].contains("planned_makespan"));
  std::map<int, double> ends;  // by rank, of slices of the plan, which must not cross
  std::size_t slices = 0;
  std::size_t names = 0;
  for (const Json& event : both["traceEvents"]) {
    if (event["ph"] == "M" && event["args"].value("name", "") == "plan") ++names;
    if (event["ph"] != "X" || event["cat"] != "plan") continue;
    ++slices;
    double& end = ends[event["pid"]];
    EXPECT_GE(event["ts"].get<double>(), end);
    end = event["ts"].get<double>() + event["dur"].get<double>();
  }
  EXPECT_EQ(names, 2U);
  std::size_t slots = 0;
  for (int32_t r = 0; r < 2; ++r) {
    EXPECT_EQ(ends[r], made.simulation.ranks[r].last_end);
    for (const Slot& slot : made.schedule.slots(Rank(r))) slots += slot.is_idle() ? 0 : 1;
  }
  EXPECT_EQ(slices, slots);
  EXPECT_EQ(both["traceEvents"].size(), bare["traceEvents"].size() + slices + 2 * names);
}

TEST(DrawTrace, ShowsWhatRanOfAStepThatFailed) {
  const Case made = make_case("1F1B", 2, 2);
  const Case failed = {made.schedule, failed_run(made.simulation, 5)};
  EXPECT_EQ(of_phase(events(failed), "X").size(), 6U);
  EXPECT_EQ(of_phase(events(failed), "s").size(), 3U);
}

TEST(DrawTrace, CountsMemory) {
  const Case made = make_case("1F1B", 2, 2);
  const auto counters = of_phase(events(made), "C");
  std::size_t samples = 0;
  double most = 0;
  for (const auto& rank : made.simulation.memory) samples += rank.size();
  for (const Json& counter : counters) most = std::max<double>(most, counter["args"]["held"]);
  EXPECT_EQ(counters.size(), samples);
  EXPECT_EQ(most, made.simulation.peak_memory);
}

TEST(DrawTrace, TakesATitleForText) {
  const Case made = make_case("GPipe", 1, 1);
  const std::string text =
      draw_trace(made.schedule, made.simulation, StageGraph::chain(1), std::string(kHostile));
  EXPECT_EQ(Json::parse(text)["otherData"]["title"], kHostile);
}

TEST(DrawTrace, HasNothingToShowForNothing) {
  EXPECT_TRUE(of_phase(events(empty_case()), "X").empty());
  EXPECT_EQ(of_phase(events(instant_case()), "X").size(), 8U);
}

}  // namespace
}  // namespace stagecraft::viz
