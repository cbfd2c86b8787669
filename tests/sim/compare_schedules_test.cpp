#include "stagecraft/sim/compare_schedules.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stagecraft/base/error.h"

namespace stagecraft {
namespace {

using testing::Not;
using testing::StartsWith;

Simulation compare_all(std::string_view, const Schedule& schedule, int32_t) {
  return simulate(schedule);
}

std::vector<std::string> names_of(const ScheduleComparison& comparison) {
  std::vector<std::string> names;
  for (const ComparedSchedule& one : comparison.schedules) {
    names.push_back(one.name + "/" + std::to_string(one.stages_per_rank));
  }
  return names;
}

TEST(CompareSchedules, HasEveryScheduleThatTrainsTheFastestFirst) {
  const ScheduleComparison comparison =
      compare_schedules({.ranks = 4, .microbatches = 8}, compare_all);
  std::vector<std::string> all;
  for (const ScheduleKind& kind : schedule_kinds()) {
    if (!kind.has_backward) continue;
    all.push_back(std::string(kind.name) + "/" + std::to_string(kind.default_stages_per_rank));
  }
  EXPECT_THAT(names_of(comparison), testing::UnorderedElementsAreArray(all));
  EXPECT_TRUE(comparison.unfit.empty());
  for (std::size_t i = 1; i < comparison.schedules.size(); ++i) {
    EXPECT_LE(comparison.schedules[i - 1].result.makespan, comparison.schedules[i].result.makespan);
  }
  EXPECT_GT(comparison.schedules.front().result.makespan, 0);
  EXPECT_TRUE(comparison.schedules.front().result.timeline.empty());
}

TEST(CompareSchedules, TriesTheGivenNumberOfStagesToo) {
  const ScheduleComparison comparison =
      compare_schedules({.ranks = 2, .microbatches = 4, .stages_per_rank = 3}, compare_all);
  EXPECT_THAT(names_of(comparison), testing::Contains("Interleaved1F1B/2"));
  EXPECT_THAT(names_of(comparison), testing::Contains("Interleaved1F1B/3"));
  // That 1F1B has one stage a rank is no news: it fits with one.
  for (const UnfitSchedule& one : comparison.unfit) EXPECT_NE(one.name, "1F1B");
}

TEST(CompareSchedules, SaysWhyOneDoesNotFitWithoutRepeatingItsName) {
  const auto picky = [](std::string_view name, const Schedule& schedule, int32_t) {
    if (name == "GPipe") throw ScheduleError("GPipe: too large", {});
    return simulate(schedule);
  };
  const ScheduleComparison comparison = compare_schedules({.ranks = 4, .microbatches = 3}, picky);
  ASSERT_FALSE(comparison.unfit.empty());
  EXPECT_EQ(comparison.unfit[0].name, "GPipe");
  EXPECT_EQ(comparison.unfit[0].reason, "too large");
  for (const UnfitSchedule& one : comparison.unfit) {
    EXPECT_THAT(one.reason, Not(StartsWith(one.name + ":")));
    EXPECT_FALSE(one.reason.empty());
  }
  // DualPipeV needs more microbatches than that.
  EXPECT_TRUE(std::any_of(comparison.unfit.begin(), comparison.unfit.end(),
                          [](const UnfitSchedule& one) { return one.name == "DualPipeV"; }));
}

TEST(CompareSchedules, WhatIsWrongForAllIsThrown) {
  const auto broken = [](std::string_view, const Schedule&, int32_t) -> Simulation {
    throw ArgumentError("costs that no schedule can have");
  };
  EXPECT_THROW(compare_schedules({.ranks = 2, .microbatches = 2}, broken), ArgumentError);
}

}  // namespace
}  // namespace stagecraft
