#include "stagecraft/schedule/text.h"

#include "stagecraft/base/error.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/schedule/json.h"
#include "stagecraft/schedule/table.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

TEST(Csv, ReadsBothLineEndsAndBlanks) {
  const Schedule unix_ends = parse_csv("0F0,,0B0\n,1F0,1B0\n");
  EXPECT_EQ(parse_csv("0F0,,0B0\r\n,1F0,1B0\r\n"), unix_ends);
  EXPECT_EQ(parse_csv("0F0,,0B0\n,1F0,1B0"), unix_ends);
  EXPECT_EQ(parse_csv(" 0F0 ,\t, 0B0\n , 1F0, 1B0 \n"), unix_ends);
  EXPECT_EQ(to_csv(unix_ends), "0F0,,0B0\n,1F0,1B0\n");
}

TEST(Csv, TellsARankWithoutSlotsFromAnIdleOne) {
  const Schedule schedule = parse_csv("0F0\n\n\"\"\n");
  EXPECT_EQ(schedule.num_ranks(), 3);
  EXPECT_TRUE(schedule.actions(Rank(1)).empty());
  EXPECT_EQ(schedule.actions(Rank(2)).size(), 1U);
  EXPECT_EQ(to_csv(schedule), "0F0\n\n\"\"\n");
}

TEST(Csv, InfersLevelAndPlacement) {
  EXPECT_EQ(parse_csv("0F0,,3F0\n1F0,2F0\n").level(), Level::kCompute);
  EXPECT_EQ(parse_csv("0UNSHARD,0F0,,0B0,0REDUCE_GRAD,0RESHARD\n").level(), Level::kCompute);
  EXPECT_EQ(parse_csv("0F0,0SEND_F0\n1F0\n").level(), Level::kLowered);
  EXPECT_EQ(parse_csv("0F0\n1RECV_F0\n").level(), Level::kLowered);
  EXPECT_EQ(parse_csv("0F0,0B0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n").level(), Level::kCompute);
  EXPECT_EQ(parse_csv("0WAIT_SEND_F0\n").level(), Level::kLowered);
  EXPECT_EQ(to_string(parse_csv("0F0,3F0\n1F0,2F0\n").placement()), "0 1 1 0");
  EXPECT_EQ(to_string(parse_csv("0F0,3F0\n").placement()), "0 - - 0");
}

TEST(Csv, NamesLineAndColumn) {
  EXPECT_ERROR(parse_csv("0F0,0B0\n1F0,2F0x\n"), ParseError,
               "line 2, column 8: expected ',' or the end of the line, got 'x'");
  EXPECT_ERROR(parse_csv("0F0,0\r\n"), ParseError, "line 1, column 6: expected F, I, W, B,");
  EXPECT_ERROR(parse_csv("0F\n"), ParseError, "line 1, column 3: expected a microbatch number");
  EXPECT_ERROR(parse_csv("0F0,hello\n"), ParseError, "line 1, column 5: expected an action");
  EXPECT_ERROR(parse_csv("0FORWARD0\n"), ParseError, "got \"FORWARD\"");
  // torch 2.13 reads these as 0W and drops the rest.
  EXPECT_ERROR(parse_csv("0WAIT0\n"), ParseError, "got \"WAIT\"");
  EXPECT_ERROR(parse_csv("1WAIT_SEND_X0\n"), ParseError, "got \"WAIT_SEND_X\"");
  EXPECT_ERROR(parse_csv("1WAIT_SEND_F\n"), ParseError, "expected a microbatch number");
  EXPECT_ERROR(parse_csv("1WAIT_REDUCE_GRAD0\n"), ParseError, "WAIT_REDUCE_GRAD has no microbatch");
  EXPECT_ERROR(parse_csv("00F0\n"), ParseError, "a stage number has no leading zero");
  EXPECT_ERROR(parse_csv("0F4294967296\n"), ParseError, "at most 2147483646");
  EXPECT_ERROR(parse_csv(""), ArgumentError, "at least one line");
}

TEST(Json, IsReadBack) {
  const Schedule schedule = parse_csv("0F0,,(0F1;1B0)OVERLAP_F_B\n1F0\n");
  const std::string json = to_json(schedule);
  EXPECT_EQ(json,
            "{\"stagecraft\": 1, \"level\": \"compute\", \"ranks\": 2, \"stages\": 2, "
            "\"microbatches\": 2,\n \"placement\": [0, 0],\n \"actions\": [\n  [\"0F0\", \"\", "
            "\"(0F1;1B0)OVERLAP_F_B\"],\n  [\"1F0\"]]}\n");
  EXPECT_EQ(parse_json(json), schedule);
  EXPECT_ERROR(parse_json("{\"a\":\n 1,}"), ParseError, "line 2, column 4: this is not valid JSON");
  EXPECT_ERROR(parse_json("[]"), ArgumentError, "a schedule in JSON is an object");
  EXPECT_ERROR(parse_json("{\"stagecraft\": 2}"), ArgumentError, "this reads version 1, got 2");
}

TEST(Text, KeepsWaits) {
  const std::string csv =
      "0F0,0SEND_F0,0RECV_B0,0B0,0WAIT_SEND_F0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1WAIT_REDUCE_GRAD,1WAIT_SEND_B0\n";
  const Schedule schedule = parse_csv(csv);
  EXPECT_EQ(to_csv(schedule), csv);
  EXPECT_EQ(parse_json(to_json(schedule)), schedule);
  EXPECT_NE(to_table(schedule).find("   4  0WAIT_SEND_F0      1REDUCE_GRAD"), std::string::npos)
      << to_table(schedule);
}

TEST(Schedule, RefusesListsThatAreNone) {
  const Placement one = Placement::loop(1, 1);
  EXPECT_ERROR(Schedule(Level::kCompute, one, {}), ArgumentError, "1 ranks, but there are 0 lists");
  EXPECT_ERROR(Schedule(Level::kCompute, one, {{Action::overlap(2)}}), ArgumentError,
               "the last overlap lacks 2 of its parts");
  EXPECT_ERROR(Schedule(Level::kCompute, one, {{Action::overlap(1), Action()}}), ArgumentError,
               "an overlap has at least 2 parts, got 1");
  EXPECT_ERROR(Schedule(Level::kCompute, one, {{Action::overlap(2), Action(), Action()}}),
               ArgumentError, "the parts of an overlap are F, I, W or B");
  EXPECT_ERROR(parse_csv("0F0\n").actions(Rank(1)), ArgumentError, "there is no rank 1");
}

TEST(Table, HasAColumnARank) {
  EXPECT_EQ(to_table(parse_csv("0F0,,0B0\n,1F0\n")),
            "step  rank 0  rank 1\n"
            "   0  0F0     .\n"
            "   1  .       1F0\n"
            "   2  0B0\n");
  // More ranks than steps, where PyTorch's table fails.
  EXPECT_EQ(to_table(parse_csv("0F0\n1F0\n2F0\n")),
            "step  rank 0  rank 1  rank 2\n"
            "   0  0F0     1F0     2F0\n");
}

}  // namespace
}  // namespace stagecraft
