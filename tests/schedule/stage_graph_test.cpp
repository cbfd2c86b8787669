#include "stagecraft/schedule/stage_graph.h"

#include "stagecraft/base/error.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

TEST(StageGraph, IsAChainWithSkips) {
  const StageGraph graph = StageGraph::chain(4).with_edges(parse_edges("0-2, 0-3,1-2"));
  EXPECT_EQ(to_string(graph.edges()), "0-1,0-2,0-3,1-2,2-3");
  EXPECT_THAT(graph.consumers(StageId(0)),
              testing::ElementsAre(StageId(1), StageId(2), StageId(3)));
  EXPECT_THAT(graph.producers(StageId(2)), testing::ElementsAre(StageId(0), StageId(1)));
  EXPECT_THAT(graph.producers(StageId(0)), testing::IsEmpty());
  EXPECT_THAT(graph.consumers(StageId(3)), testing::IsEmpty());
}

TEST(StageGraph, TakesEdgesAlone) {
  const StageGraph towers = StageGraph::of(3, parse_edges("1-2,0-2"));
  EXPECT_EQ(to_string(towers.edges()), "0-2,1-2");
  EXPECT_THAT(towers.consumers(StageId(0)), testing::ElementsAre(StageId(2)));
  EXPECT_TRUE(parse_edges(" ").empty());
}

TEST(StageGraph, RefusesWhatIsNoEdge) {
  EXPECT_ERROR(StageGraph::of(3, parse_edges("2-1")), ArgumentError, "got 2-1");
  EXPECT_ERROR(StageGraph::of(3, parse_edges("1-1")), ArgumentError, "got 1-1");
  EXPECT_ERROR(StageGraph::of(3, parse_edges("0-3")), ArgumentError, "of the 3 stages, got 0-3");
  EXPECT_ERROR(StageGraph::of(3, parse_edges("0-1,0-1")), ArgumentError, "0-1 is given twice");
  EXPECT_ERROR(StageGraph::chain(0), ArgumentError, "at least 1 stage");
  EXPECT_ERROR(parse_edges("0-2,1"), ParseError, "line 1, column 6: expected '-'");
  EXPECT_ERROR(parse_edges("0-2;"), ParseError, "line 1, column 4");
  EXPECT_ERROR(parse_edges("0--2"), ParseError, "expected a stage from 0");
  EXPECT_ERROR(parse_edges("0-x"), ParseError, "line 1, column 3");
}

}  // namespace
}  // namespace stagecraft
