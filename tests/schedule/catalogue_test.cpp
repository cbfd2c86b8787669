#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "stagecraft/base/error.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/schedule/passes/add_transfers.h"
#include "stagecraft/schedule/passes/lower.h"
#include "stagecraft/schedule/passes/merge_backward.h"
#include "stagecraft/schedule/passes/reduce_grads.h"
#include "stagecraft/schedule/passes/shard_stages.h"
#include "stagecraft/schedule/placement.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/table.h"
#include "stagecraft/schedule/text.h"
#include "stagecraft/schedule/verify.h"
#include "stagecraft/sim/unit_steps.h"
#include "tests/support/expect_error.h"

// What PyTorch's own tests of schedules cover, one test here for each there. Expected lists and
// numbers of steps are what torch 2.13 gives.

namespace stagecraft {
namespace {

struct Shape {
  int32_t stages_per_rank;
  int32_t microbatches;
  int32_t ranks;
};

constexpr Shape kShapes[] = {
    {2, 2, 2},   {2, 4, 4},    {2, 8, 2},  {2, 8, 4},  {2, 8, 8},  {4, 4, 4},
    {4, 8, 4},   {4, 8, 8},    {4, 16, 4}, {4, 32, 4}, {4, 64, 4}, {4, 16, 16},
    {4, 32, 32}, {4, 128, 64}, {3, 2, 2},  {3, 8, 2},  {3, 12, 4}, {4, 6, 3},
    {4, 10, 5},  {2, 3, 4},    {2, 4, 4},  {2, 10, 4}, {2, 15, 4},
};

std::string name_of(const Shape& shape) {
  return std::to_string(shape.stages_per_rank) + " stages a rank, " +
         std::to_string(shape.microbatches) + " microbatches, " + std::to_string(shape.ranks) +
         " ranks";
}

std::string read_golden(std::string_view name) {
  std::ifstream in(std::string(SC_GOLDEN) + '/' + std::string(name), std::ios::binary);
  EXPECT_TRUE(in) << name;
  return {std::istreambuf_iterator<char>(in), {}};
}

// A schedule of one rank at the level where passes work.
Schedule one_rank(std::string_view text) {
  const std::vector<ActionList> lists = {parse_actions(text)};
  return {Level::kCompute, infer_placement(lists), lists};
}

std::string text_of(const Schedule& schedule) {
  return to_string(schedule.slots(Rank(0)));
}

// Prints, gets its transfers, can be executed, and runs to its end.
void expect_runs(const ScheduleKind& kind, const Shape& shape) {
  SCOPED_TRACE(std::string(kind.name) + ", " + name_of(shape));
  const Schedule schedule = kind.build({.ranks = shape.ranks,
                                        .microbatches = shape.microbatches,
                                        .stages_per_rank = shape.stages_per_rank});
  EXPECT_EQ(schedule.num_ranks(), shape.ranks);
  EXPECT_EQ(schedule.num_stages(), shape.ranks * shape.stages_per_rank);
  EXPECT_EQ(schedule.num_microbatches(), shape.microbatches);
  EXPECT_FALSE(to_table(schedule).empty());
  for (const Schedule& lowered : {add_transfers(schedule), lower(schedule)}) {
    EXPECT_TRUE(
        verify(lowered, {.mode = infer_mode(schedule), .microbatches = shape.microbatches}).ok());
    const UnitSteps steps = simulate_unit_steps(lowered);
    for (int32_t r = 0; r < shape.ranks; ++r) {
      const auto& done = steps.ranks[static_cast<std::size_t>(r)];
      EXPECT_LT(done.back().step, steps.steps);
      EXPECT_TRUE(std::ranges::is_sorted(done, std::less(), &UnitSteps::Done::step));
    }
  }
}

// test_get_schedule_class
TEST(Catalogue, SchedulesAreFoundByName) {
  for (const std::string_view name : {"1F1B", "Interleaved1F1B", "GPipe", "LoopedBFS",
                                      "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"}) {
    EXPECT_EQ(get_schedule_kind(name).name, name);
  }
  const auto turn = [](std::string_view name, int (*change)(int)) {
    std::string turned;
    for (const char c : name) turned += static_cast<char>(change(static_cast<unsigned char>(c)));
    return turned;
  };
  for (const ScheduleKind& kind : schedule_kinds()) {
    EXPECT_EQ(get_schedule_kind(turn(kind.name, std::tolower)).name, kind.name);
    EXPECT_EQ(get_schedule_kind(turn(kind.name, std::toupper)).name, kind.name);
  }
  EXPECT_ERROR(get_schedule_kind("ScheduleThatDoesNotExist"), ArgumentError,
               "ScheduleThatDoesNotExist");
  for (const ScheduleKind& kind : schedule_kinds()) {
    EXPECT_ERROR(build_schedule("1F1C", {}), ArgumentError, std::string(kind.name));
  }
}

// test_pipeline_order, test_pipeline_order_flex_and_zero_bubble,
// test_pipeline_order_for_v_schedules
TEST(Catalogue, SchedulesRunOrSayWhatTheyNeed) {
  for (const ScheduleKind& kind : schedule_kinds()) {
    for (const Shape& shape : kShapes) {
      if (kind.takes({shape.ranks, shape.stages_per_rank, shape.microbatches})) {
        expect_runs(kind, shape);
        continue;
      }
      const int32_t least = kind.min_microbatches(shape.ranks, shape.stages_per_rank);
      const std::string legal = kind.stages_per_rank.contains(shape.stages_per_rank)
                                    ? std::to_string(least)
                                    : std::to_string(kind.stages_per_rank.min);
      EXPECT_ERROR(kind.build({.ranks = shape.ranks,
                               .microbatches = shape.microbatches,
                               .stages_per_rank = shape.stages_per_rank}),
                   ArgumentError, legal);
    }
  }
}

// test_csv_compare
TEST(Catalogue, DualPipeVEqualsItsFile) {
  EXPECT_EQ(to_csv(build_schedule("DualPipeV", {.ranks = 4, .microbatches = 10})),
            read_golden("DualPipeV_l2_mb10_pp4_compute.csv"));
}

// test_action_parse
TEST(Catalogue, ActionsPrintAsTheyAreRead) {
  const auto read = [](std::string_view text) { return parse_action(text); };
  EXPECT_EQ(read("1F0"), Action(StageId(1), ActionType::kForward, MicrobatchId(0)));
  EXPECT_EQ(read("2I1"), Action(StageId(2), ActionType::kBackwardInput, MicrobatchId(1)));
  EXPECT_EQ(read("0W3"), Action(StageId(0), ActionType::kBackwardWeight, MicrobatchId(3)));
  EXPECT_EQ(read("0B3"), Action(StageId(0), ActionType::kBackward, MicrobatchId(3)));
  EXPECT_EQ(read("1UNSHARD"), Action(StageId(1), ActionType::kUnshard));
  EXPECT_EQ(read("3RESHARD"), Action(StageId(3), ActionType::kReshard));
  EXPECT_EQ(read("2SEND_B2"), Action(StageId(2), ActionType::kSendBackward, MicrobatchId(2)));
  EXPECT_EQ(read("1RECV_F1"), Action(StageId(1), ActionType::kRecvForward, MicrobatchId(1)));
  for (const std::string_view text :
       {"1F0", "2I1", "0W3", "0B3", "1UNSHARD", "3RESHARD", "2SEND_B2", "1RECV_F1"}) {
    EXPECT_EQ(to_string(read(text)), text);
  }
}

// test_unshard_reshard
TEST(Catalogue, StagesAreUnshardedBeforeUse) {
  const auto sharded = [](std::string_view text, int32_t active) {
    return text_of(shard_stages(one_rank(text), active));
  };
  EXPECT_EQ(
      sharded("0F0,0F1,2F0,2F1,,2B0,2B1,0B0,0B1", 1),
      "0UNSHARD,0F0,0F1,0RESHARD,2UNSHARD,2F0,2F1,2B0,2B1,2RESHARD,0UNSHARD,0B0,0B1,0RESHARD");
  EXPECT_EQ(sharded("0F0,0F1,2F0,2F1,,2B0,2B1,0B0,0B1", 3),
            "0UNSHARD,2UNSHARD,0F0,0F1,2F0,2F1,2B0,2B1,2RESHARD,0B0,0B1,0RESHARD");
  EXPECT_EQ(sharded("0F0,2F0,4F0,6F0,6B0,4B0,2B0,0B0", 2),
            "0UNSHARD,2UNSHARD,0F0,0RESHARD,4UNSHARD,2F0,2RESHARD,6UNSHARD,4F0,6F0,6B0,6RESHARD,"
            "2UNSHARD,4B0,4RESHARD,0UNSHARD,2B0,2RESHARD,0B0,0RESHARD");
  EXPECT_EQ(sharded(",0F0,3F0,(0F1;3B0)OVERLAP_F_B,0B0,3F1,3B1,0B1", 1),
            "0UNSHARD,0F0,0RESHARD,3UNSHARD,3F0,0UNSHARD,(0F1;3B0)OVERLAP_F_B,3RESHARD,0B0,"
            "0RESHARD,3UNSHARD,3F1,3B1,3RESHARD,0UNSHARD,0B1,0RESHARD");
}

// test_reduce_grad
TEST(Catalogue, GradientsAreReducedAfterTheLastBackward) {
  const auto reduced = [](std::string_view text) { return text_of(reduce_grads(one_rank(text))); };
  EXPECT_EQ(reduced("0F0,,0F1,0B0,,0B1"), "0F0,0F1,0B0,0B1,0REDUCE_GRAD");
  EXPECT_EQ(reduced("0F0,0F1,2F0,2F1,2I0,2W0,2I1,0B0,2W1,0B1"),
            "0F0,0F1,2F0,2F1,2I0,2W0,2I1,0B0,2W1,2REDUCE_GRAD,0B1,0REDUCE_GRAD");
  EXPECT_EQ(reduced("0F0,3F0,(0F1;3B0)OVERLAP_F_B,3F1,3B1,0B0,0I1,0W1"),
            "0F0,3F0,(0F1;3B0)OVERLAP_F_B,3F1,3B1,3REDUCE_GRAD,0B0,0I1,0W1,0REDUCE_GRAD");
  EXPECT_EQ(reduced("0F0,3F0,3F1,3B0,(0F1;3B1)OVERLAP_F_B,0B0,,0B1"),
            "0F0,3F0,3F1,3B0,(0F1;3B1)OVERLAP_F_B,3REDUCE_GRAD,0B0,0B1,0REDUCE_GRAD");
}

// test_merge_bw
TEST(Catalogue, BackwardInOneWhereNothingIsBetween) {
  const auto merged = [](std::string_view text) { return text_of(merge_backward(one_rank(text))); };
  EXPECT_EQ(merged("0F0,0I0,,,0W0,"), "0F0,0B0");
  EXPECT_EQ(merged("0F0,0F1,0I0,,0W0,0I1,2F0,0W1"), "0F0,0F1,0B0,0I1,2F0,0W1");
  EXPECT_EQ(merged("0I0,0W1,0I1,0W1,2I0,0W0,,2I1,2W1"), "0I0,0W1,0B1,2I0,0W0,2B1");
  EXPECT_EQ(merged("0F0,0F1,0I0,0I1,0W0,0W1"), "0F0,0F1,0I0,0I1,0W0,0W1");
}

// test_send_recv
TEST(Catalogue, TransfersOfTwoRanks) {
  const Schedule lowered =
      add_transfers(parse_csv("0F0,0F1,,0B0,,0B1\n"
                              ",1F0,1B0,1F1,1B1\n"));
  EXPECT_EQ(to_csv(lowered),
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
            "1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n");
  EXPECT_EQ(simulate_unit_steps(lowered).steps, 11);
}

TEST(Catalogue, TransfersOfAV) {
  // A zero-bubble V without its idle slots: they decide where receives stand.
  const Schedule lowered =
      add_transfers(parse_csv("0F0,0F1,3F0,3I0,3W0,3F1,3I1,3W1,0I0,0W0,0I1,0W1\n"
                              "1F0,2F0,1F1,2F1,2I0,2W0,1I0,1W0,2I1,2W1,1I1,1W1\n"));
  EXPECT_EQ(to_csv(lowered),
            "0F0,0SEND_F0,0F1,0SEND_F1,3RECV_F0,3F0,3I0,3SEND_B0,3RECV_F1,3W0,3F1,3I1,3SEND_B1,"
            "0RECV_B0,3W1,0I0,0W0,0RECV_B1,0I1,0W1\n"
            "1RECV_F0,1F0,1RECV_F1,2F0,2SEND_F0,1F1,2RECV_B0,2F1,2SEND_F1,2I0,2W0,2RECV_B1,1I0,"
            "1SEND_B0,1W0,2I1,2W1,1I1,1SEND_B1,1W1\n");
  EXPECT_EQ(simulate_unit_steps(lowered).steps, 24);

  const Schedule built = build_schedule("ZBVZeroBubble", {.ranks = 2, .microbatches = 2});
  EXPECT_EQ(to_csv(add_transfers(built)),
            "0F0,0SEND_F0,0F1,0SEND_F1,3RECV_F0,3F0,3I0,3SEND_B0,3RECV_F1,3W0,3F1,3I1,3SEND_B1,3W1,"
            "0RECV_B0,0I0,0W0,0RECV_B1,0I1,0W1\n"
            "1RECV_F0,1RECV_F1,1F0,2F0,2SEND_F0,1F1,2RECV_B0,2F1,2SEND_F1,2I0,2W0,2RECV_B1,1I0,"
            "1SEND_B0,1W0,2I1,2W1,1I1,1SEND_B1,1W1\n");

  const Schedule weights_last =
      add_transfers(parse_csv("0F0,0F1,3F0,3I0,3F1,3I1,0I0,0I1,3W0,3W1,0W0,0W1\n"
                              "1F0,1F1,2F0,2F1,2I0,2I1,1I0,1I1,2W0,2W1,1W0,1W1\n"));
  EXPECT_EQ(to_csv(weights_last),
            "0F0,0SEND_F0,0F1,0SEND_F1,3RECV_F0,3F0,3RECV_F1,3I0,3SEND_B0,3F1,3I1,3SEND_B1,"
            "0RECV_B0,0I0,0RECV_B1,0I1,3W0,3W1,0W0,0W1\n"
            "1RECV_F0,1F0,1RECV_F1,1F1,2F0,2SEND_F0,2F1,2SEND_F1,2RECV_B0,2I0,2RECV_B1,2I1,1I0,"
            "1SEND_B0,1I1,1SEND_B1,2W0,2W1,1W0,1W1\n");
  EXPECT_EQ(simulate_unit_steps(weights_last).steps, 24);
}

// test_csv
TEST(Catalogue, MergedZeroBubbleEqualsItsFile) {
  const Schedule merged = merge_backward(build_schedule(
      "InterleavedZeroBubble", {.ranks = 2, .microbatches = 8, .stages_per_rank = 2}));
  EXPECT_EQ(to_csv(merged), read_golden("zb1p_merged_compute.csv"));
  const Schedule lowered = add_transfers(merged);
  EXPECT_EQ(to_csv(lowered), read_golden("zb1p_merged_comms.csv"));
  EXPECT_EQ(simulate_unit_steps(lowered).steps, 113);
}

// TestValidateSchedule
TEST(Catalogue, CompleteSchedulesAreGood) {
  EXPECT_TRUE(verify(parse_csv("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n")).ok());
  EXPECT_TRUE(verify(parse_csv("0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1F1,1I0,1I1,1W0,1W1\n")).ok());
}

TEST(Catalogue, ARankWithoutActionsIsBad) {
  const std::string only = "0F0,0F1,0B0,0B1";
  EXPECT_ERROR(Schedule(Level::kCompute, Placement::loop(2, 2), {parse_actions(only)}),
               ArgumentError, "2");
  EXPECT_FALSE(verify(parse_csv(only + "\n\n")).ok());
  const Verdict verdict =
      verify(Schedule(Level::kCompute, Placement::loop(2, 2), {parse_actions(only), {}}));
  ASSERT_FALSE(verdict.ok());
  EXPECT_TRUE(std::ranges::any_of(verdict.findings, [](const Finding& finding) {
    return finding.kind == FindingKind::kMissing && finding.action == "1F0";
  }));
}

TEST(Catalogue, AMissingBackwardIsBad) {
  const Verdict verdict = verify(parse_csv("0F0,0F1,0B0\n1F0,1F1,1B0,1B1\n"));
  ASSERT_EQ(verdict.num_findings, 1U);
  EXPECT_EQ(verdict.findings[0].kind, FindingKind::kMissing);
  EXPECT_NE(to_string(verdict.findings[0]).find("0B1"), std::string::npos)
      << to_string(verdict.findings[0]);
  EXPECT_FALSE(verify(parse_csv("0F0,0F1,0I0,0I1,0W0\n1F0,1F1,1I0,1I1,1W0,1W1\n")).ok());
}

// test_generate_stage_to_rank_mapping
TEST(Catalogue, StagesGoToRanks) {
  EXPECT_EQ(to_string(Placement::loop(2, 2)), "0 1");
  EXPECT_EQ(to_string(Placement::loop(4, 8)), "0 1 2 3 0 1 2 3");
  EXPECT_EQ(to_string(Placement::loop(4, 10)), "0 1 2 3 0 1 2 3 0 1");
  EXPECT_EQ(to_string(Placement::v(2, 2)), "0 1");
  EXPECT_EQ(to_string(Placement::v(4, 8)), "0 1 2 3 3 2 1 0");
  EXPECT_EQ(to_string(Placement::v(3, 9)), "0 1 2 2 1 0 0 1 2");
  EXPECT_EQ(to_string(Placement::v(4, 12)), "0 1 2 3 3 2 1 0 0 1 2 3");
  EXPECT_EQ(Placement::from_style("v", 4, 8), Placement::v(4, 8));
  EXPECT_EQ(Placement::from_style("loop", 4, 8), Placement::loop(4, 8));
  EXPECT_ERROR(Placement::v(4, 10), ArgumentError, "10");
  EXPECT_ERROR(Placement::from_style("zigzag", 4, 8), ArgumentError, "zigzag");

  const Placement placement = Placement::v(3, 6);
  EXPECT_TRUE(std::ranges::equal(placement.stages(Rank(0)), std::vector{StageId(0), StageId(5)}));
  EXPECT_TRUE(std::ranges::equal(placement.stages(Rank(2)), std::vector{StageId(2), StageId(3)}));
}

}  // namespace
}  // namespace stagecraft
