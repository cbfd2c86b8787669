#include "stagecraft/sim/cost_model.h"

#include "stagecraft/base/error.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

TEST(Costs, AreReadFromText) {
  const CostModel costs = parse_costs("F=1.5,B=2,W=3,C=4,BW=5,BYTES=6,MF=7,MB=1,MW=6,CAP=1e9");
  EXPECT_EQ(costs.stage.forward, 1.5);
  EXPECT_EQ(costs.stage.backward_input, 2);
  EXPECT_EQ(costs.stage.full_backward(), 5);
  EXPECT_EQ(costs.link, (LinkCost{4, 5}));
  EXPECT_EQ(costs.output_bytes, std::vector<double>{6});
  EXPECT_EQ(costs.memory_cap, 1e9);
  EXPECT_EQ(parse_costs("I=2"), parse_costs("B=2"));
}

TEST(Costs, NameTheColumnOfWhatTheyCannotRead) {
  EXPECT_ERROR(parse_costs("F=1,Q=2"), ParseError, "line 1, column 5: there is no cost \"Q\"");
  EXPECT_ERROR(parse_costs("F=1,B=x"), ParseError, "line 1, column 7: expected a number for B");
  EXPECT_ERROR(parse_costs("F=1,,W=1"), ParseError, "column 5: expected KEY=NUMBER, got \"\"");
  EXPECT_ERROR(parse_costs(""), ParseError, "expected KEY=NUMBER");
  EXPECT_ERROR(parse_costs("I=1,B=2"), ParseError, "column 5: I is given twice");
  EXPECT_ERROR(parse_costs("F=1 "), ParseError, "expected a number for F, got \"1 \"");
}

TEST(Costs, AreReadFromAFile) {
  const CostModel costs = parse_cost_file(R"({
    "F": 10, "B": 11, "W": 12, "C": 1, "WEIGHTS": [100, 200], "RENDEZVOUS": true,
    "stages": [{"F": 20}, {}],
    "microbatches": [{"stage": 0, "microbatch": 3, "W": 30}],
    "links": [{"from": 0, "to": 1, "BW": 7}]})");
  EXPECT_EQ(costs.stage.forward, 10);
  ASSERT_EQ(costs.stages.size(), 2U);
  EXPECT_EQ(costs.stages[0].forward, 20);
  EXPECT_EQ(costs.stages[0].backward_input, 11);
  EXPECT_EQ(costs.stages[1].forward, 10);
  ASSERT_EQ(costs.microbatches.size(), 1U);
  EXPECT_EQ(costs.microbatches[0].cost.forward, 20);
  EXPECT_EQ(costs.microbatches[0].cost.backward_weight, 30);
  EXPECT_EQ(costs.links[0].cost, (LinkCost{1, 7}));
  EXPECT_EQ(costs.weights, (std::vector<double>{100, 200}));
  EXPECT_TRUE(costs.rendezvous);
}

TEST(Costs, NameTheEntryOfAFileThatIsWrong) {
  EXPECT_ERROR(parse_cost_file("{\n\"F\": }"), ParseError, "line 2, column 6");
  EXPECT_ERROR(parse_cost_file("[]"), ArgumentError, "a cost file is a JSON object");
  EXPECT_ERROR(parse_cost_file(R"({"F": "fast"})"), ArgumentError,
               "\"F\": expected a number, got \"fast\"");
  EXPECT_ERROR(parse_cost_file(R"({"H": 1})"), ArgumentError, "there is no cost \"H\"");
  EXPECT_ERROR(parse_cost_file(R"({"stages": [{}, {"C": 1}]})"), ArgumentError,
               "\"stages\", entry 1: there is no cost \"C\" here");
  EXPECT_ERROR(parse_cost_file(R"({"links": [{"from": 0}]})"), ArgumentError,
               "\"links\", entry 0: expected \"to\"");
  EXPECT_ERROR(parse_cost_file(R"({"B": 1, "I": 2})"), ArgumentError,
               "the cost file: I and B mean the same; give one of them");
  EXPECT_ERROR(parse_cost_file(R"({"RENDEZVOUS": 1})"), ArgumentError, "expected true or false");
}

TEST(Costs, AreCheckedAgainstTheSchedule) {
  CostModel costs;
  EXPECT_NO_THROW(check_costs(costs, 2, 2, 2));
  costs.overlap = 1.5;
  EXPECT_ERROR(check_costs(costs, 2, 2, 2), ArgumentError, "OVERLAP is at most 1, got 1.5");
  costs.overlap = 0;
  costs.link.bandwidth = 0;
  EXPECT_ERROR(check_costs(costs, 2, 2, 2), ArgumentError, "BW must be more than 0");
  costs.link.bandwidth.reset();
  costs.microbatches.push_back({StageId(0), MicrobatchId(2), {}});
  EXPECT_ERROR(check_costs(costs, 2, 2, 2), ArgumentError, "there is no microbatch 2, only 2");
  costs.microbatches.clear();
  costs.links.push_back({Rank(2), Rank(0), {}});
  EXPECT_ERROR(check_costs(costs, 2, 2, 2), ArgumentError, "there is no rank 2");
}

}  // namespace
}  // namespace stagecraft
