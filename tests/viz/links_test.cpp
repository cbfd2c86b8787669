#include "stagecraft/viz/links.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stagecraft/schedule/text.h"
#include "tests/viz/support.h"

namespace stagecraft::viz {
namespace {

std::vector<std::string> texts(const Case& made, const StageGraph& graph) {
  const auto lanes = lay_out(made.schedule, made.simulation);
  std::vector<std::string> result;
  for (const Link& link : find_links(lanes, graph)) {
    result.push_back(to_string(link.from->action) + " " + to_string(link.to->action));
  }
  std::sort(result.begin(), result.end());
  return result;
}

TEST(FindLinks, GoForwardAndBackBetweenRanks) {
  EXPECT_THAT(texts(make_case("GPipe", 2, 1), StageGraph::chain(2)),
              testing::ElementsAre("0F0 1F0", "1B0 0B0"));
}

TEST(FindLinks, StayOutOfARank) {
  // Stages 1 and 2 are on one rank.
  const Case made = make_case("ZBVZeroBubble", 2, 1);
  EXPECT_THAT(texts(made, StageGraph::chain(4)),
              testing::ElementsAre("0F0 1F0", "1I0 0I0", "2F0 3F0", "3I0 2I0"));
}

TEST(FindLinks, FollowSkipEdges) {
  const StageGraph graph = StageGraph::of(3, {{StageId(0), StageId(2)}});
  const Schedule schedule(Level::kCompute, Placement::loop(3, 3),
                          {parse_actions("0F0"), parse_actions("1F0"), parse_actions("2F0")});
  EXPECT_THAT(texts({schedule, simulate(schedule, {}, graph)}, graph),
              testing::ElementsAre("0F0 2F0"));
}

TEST(FindLinks, AreAsManyAsTheSimulatorCounts) {
  for (const char* name :
       {"1F1B", "Interleaved1F1B", "ZBVZeroBubble", "DualPipeV", "ForwardOnly"}) {
    const Case made = make_case(name, 4, 8);
    const auto lanes = lay_out(made.schedule, made.simulation);
    const auto links = find_links(lanes, StageGraph::chain(made.schedule.num_stages()));
    EXPECT_EQ(static_cast<int64_t>(links.size()), made.simulation.transfers) << name;
    for (const Link& link : links) EXPECT_LE(link.from->run.end, link.to->run.start) << name;
  }
}

}  // namespace
}  // namespace stagecraft::viz
