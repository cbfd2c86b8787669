#include "stagecraft/viz/terminal.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stagecraft/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/viz/support.h"

namespace stagecraft::viz {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string plain(const Case& made, const std::string& title = "", int32_t width = 100) {
  return draw_terminal(made.schedule, made.simulation,
                       {.width = width, .color = TerminalColor::kNone, .title = title});
}

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> result;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) result.push_back(line);
  return result;
}

TEST(DrawTerminal, ShowsEveryStepOfASmallSchedule) {
  EXPECT_EQ(plain(make_case("1F1B", 2, 2), "1F1B"),
            "1F1B\n"
            "                                     bubble  memory\n"
            "rank 0  F0-F1-......B0====...B1====  33.3 %       2\n"
            "rank 1  ...F0-B0====F1-B1====......  33.3 %       1\n"
            "  time  0     2     4     6     8\n"
            "        F forward   B backward   . idle\n"
            "        makespan 9   bubble 33.3 %   peak memory 2   transfers 4\n");
}

TEST(DrawTerminal, TellsAllTypesAndStagesApart) {
  const std::string text = plain(make_case("ZBVZeroBubble", 2, 4));
  for (const char* part : {"F0", "f0", "I0", "i0", "W0", "w0", "I backward, inputs",
                           "W backward, weights", "lower case"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(text, Not(HasSubstr("B backward")));
}

TEST(DrawTerminal, DividesAnOverlapAmongItsParts) {
  EXPECT_THAT(plain(make_case("DualPipeV", 2, 4)),
              testing::ContainsRegex("F3-b[0-9]====|F3b[0-9]=="));
}

TEST(DrawTerminal, KeepsToItsWidth) {
  for (const int32_t width : {75, 80, 100, 200}) {
    for (const Case& made : {make_case("1F1B", 4, 8), make_case("1F1B", 64, 512),
                             make_case("GPipe", 1, 1), make_case("DualPipeV", 4, 8)}) {
      for (const std::string& line : lines(plain(made, "", width))) {
        EXPECT_LE(line.size(), static_cast<std::size_t>(width)) << line;
      }
    }
  }
}

TEST(DrawTerminal, RoundsTimesThatHaveNoCommonStep) {
  const Case made = make_case("1F1B", 4, 8, parse_costs("F=18522,B=18086,W=9337,C=601"));
  const auto drawn = lines(plain(made));
  EXPECT_THAT(drawn[1], testing::StartsWith("rank 0  F0-F1F2-F3-....."));
  EXPECT_EQ(drawn.size(), 8U);
}

TEST(DrawTerminal, ShowsWhatTakesMostWhereActionsAreNarrow) {
  const auto drawn = lines(plain(make_case("1F1B", 64, 512)));
  ASSERT_EQ(drawn.size(), 64U + 4);
  EXPECT_THAT(drawn[1], testing::ContainsRegex("rank 0  FFF?\\.+B+ "));
}

TEST(DrawTerminal, LeavesOutLanesInTheMiddle) {
  const Case made = make_case("1F1B", 100, 4);
  const std::string text = draw_terminal(made.schedule, made.simulation,
                                         {.color = TerminalColor::kNone, .max_ranks = 10});
  EXPECT_THAT(text, HasSubstr("rank 4  "));
  EXPECT_THAT(text, HasSubstr("...  (90 more)\nrank 95  "));
  EXPECT_EQ(count(text, "rank"), 10U);
}

TEST(DrawTerminal, ColorsAndResets) {
  const Case made = make_case("Interleaved1F1B", 4, 8);
  const std::string rich = draw_terminal(made.schedule, made.simulation);
  EXPECT_THAT(rich, HasSubstr("\x1b[48;2;35;84;150m"));
  EXPECT_EQ(rich.rfind("\x1b[0m"), rich.rfind('\x1b'));
  const std::string fewer =
      draw_terminal(made.schedule, made.simulation, {.color = TerminalColor::k256});
  EXPECT_THAT(fewer, HasSubstr("\x1b[48;5;"));
  EXPECT_THAT(fewer, Not(HasSubstr("[48;2;")));
}

TEST(DrawTerminal, HasARowOfThePlanUnderEachLane) {
  const Case made = make_case("1F1B", 2, 2);
  CostModel slow;
  slow.stage.forward = 2;
  const Simulation run = simulate(made.schedule, slow);
  EXPECT_EQ(
      draw_terminal(made.schedule, run, {.color = TerminalColor::kNone, .plan = &made.simulation}),
      "                                              bubble  memory\n"
      "rank 0  F0----F1----......B0====......B1====  33.3 %       2\n"
      "plan 0  F0-F1-......B0====...B1====.........  33.3 %       2\n"
      "rank 1  ......F0----B0====F1----B1====......  33.3 %       1\n"
      "plan 1  ...F0-B0====F1-B1====...............  33.3 %       1\n"
      "  time  0              5              10\n"
      "        F forward   B backward   . idle\n"
      "        makespan 12 (plan 9)   bubble 33.3 % (plan 33.3 %)   peak memory 2   "
      "transfers 4\n");
}

TEST(DrawTerminal, DrawsThePlanThinAndDim) {
  const Case made = make_case("1F1B", 2, 2);
  const std::string text =
      draw_terminal(made.schedule, made.simulation, {.plan = &made.simulation});
  EXPECT_THAT(text, HasSubstr("\x1b[2m\x1b[38;2;62;120;190m▀▀▘\x1b[0m"));
  const Case large = make_case("1F1B", 64, 512);
  EXPECT_THAT(draw_terminal(large.schedule, large.simulation, {.plan = &large.simulation}),
              HasSubstr("m▀\x1b[0m"));
}

TEST(DrawTerminal, FitsThePlanIntoItsWidth) {
  const Case made = make_case("1F1B", 4, 8, parse_costs("F=18522,B=18086,W=9337,C=601"));
  const Case fast = make_case("1F1B", 4, 8);
  for (const auto& [run, plan] :
       {std::pair(made.simulation, fast.simulation), std::pair(fast.simulation, made.simulation)}) {
    const std::string text =
        draw_terminal(made.schedule, run, {.color = TerminalColor::kNone, .plan = &plan});
    for (const std::string& line : lines(text)) EXPECT_LE(line.size(), 100U) << line;
    EXPECT_EQ(count(text, "plan 3  "), 1U);
  }
}

TEST(DrawTerminal, ShowsWhatRanOfAStepThatFailed) {
  const Case made = make_case("1F1B", 2, 2);
  const Simulation run = failed_run(made.simulation, 5);
  EXPECT_THAT(draw_terminal(made.schedule, run, {.color = TerminalColor::kNone}),
              HasSubstr("rank 0  F0-F1-......B0====.........  "));
}

TEST(DrawTerminal, ShowsWaits) {
  EXPECT_EQ(plain(waiting_case()),
            "                                                 bubble  memory\n"
            "rank 0  F0-F1-:::...............B0====...B1====  53.8 %       2\n"
            "rank 1  .........F0-B0====F1-B1====::::::......  53.8 %       1\n"
            "  time  0              5              10\n"
            "        F forward   B backward   : wait   . idle\n"
            "        makespan 13   bubble 53.8 %   peak memory 2   transfers 4\n");
  const Case made = waiting_case();
  const std::string rich = draw_terminal(made.schedule, made.simulation);
  EXPECT_EQ(count(rich, "┄"), 3U + 6 + 1);  // rank 0, rank 1, legend
  EXPECT_THAT(plain(make_case("1F1B", 2, 2)), Not(HasSubstr("wait")));
}

TEST(DrawTerminal, TakesATitleForText) {
  EXPECT_THAT(plain(make_case("GPipe", 1, 1), std::string(kHostile)),
              testing::StartsWith(std::string(kHostile) + "\n"));
  EXPECT_THAT(plain(make_case("GPipe", 1, 1), "\x1b[31mred\n"), testing::StartsWith("?[31mred?\n"));
}

TEST(DrawTerminal, HasNothingToShowForNothing) {
  EXPECT_THAT(plain(empty_case()), HasSubstr("makespan 0   bubble 0.0 %"));
  EXPECT_THAT(plain(instant_case()), HasSubstr("makespan 0"));
  EXPECT_FALSE(draw_terminal(empty_case().schedule, empty_case().simulation).empty());
}

TEST(DrawTerminal, RefusesANarrowOrAbsurdTerminal) {
  EXPECT_ERROR(plain(make_case("GPipe", 1, 1), "", 100'001), ArgumentError, "got 100001");
  EXPECT_ERROR(plain(make_case("GPipe", 1, 1), "", 39), ArgumentError,
               "40 to 100000 columns wide, got 39");
}

}  // namespace
}  // namespace stagecraft::viz
