#include "stagecraft/schedule/activation_slots.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "stagecraft/base/error.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/schedule/passes/lower.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

using testing::ElementsAre;

std::vector<int32_t> slots_of(const ActivationSlots& slots) {
  std::vector<int32_t> numbers;
  for (const auto& each : slots.activations()) numbers.push_back(each.slot);
  return numbers;
}

TEST(ActivationSlots, GivesTheLowestFreeSlot) {
  const Schedule schedule = parse_csv("0F0,1F0,0F1,1B0,0B0,1F1,1B1,0B1\n");
  const ActivationSlots slots = activation_slots(schedule, Rank(0));
  EXPECT_THAT(slots_of(slots), ElementsAre(0, 2, 1, 0));  // (0,0) (0,1) (1,0) (1,1)
  EXPECT_EQ(slots.num_slots(), 3);
  EXPECT_EQ(slots.get(StageId(1), MicrobatchId(0)).slot, 1);
  EXPECT_EQ(slots.get(StageId(0), MicrobatchId(1)).first, 2);
  EXPECT_EQ(slots.get(StageId(0), MicrobatchId(1)).last, 7);
  EXPECT_EQ(activation_slots(schedule, Rank(0), SlotGranularity::kMicrobatch).num_slots(), 2);
  const std::vector<StageId> one = {StageId(1)};
  EXPECT_EQ(activation_slots(schedule, Rank(0), one).num_slots(), 1);
  EXPECT_ERROR(slots.get(StageId(0), MicrobatchId(2)), ArgumentError,
               "there is no activation of stage 0 and microbatch 2");
}

// A buffer that stages share is held from the first F to the last B of the microbatch.
TEST(ActivationSlots, OfAMicrobatchHaveOneLifetime) {
  const Schedule schedule = parse_csv("0F0,1F0,0F1,1F1,1B0,0B0,1B1,0B1\n");
  const ActivationSlots pairs = activation_slots(schedule, Rank(0));
  const ActivationSlots shared = activation_slots(schedule, Rank(0), SlotGranularity::kMicrobatch);
  const auto span = [](const ActivationSlots& slots, int32_t stage, int32_t microbatch) {
    const auto& activation = slots.get(StageId(stage), MicrobatchId(microbatch));
    return std::pair(activation.first, activation.last);
  };
  EXPECT_EQ(span(pairs, 1, 0), std::pair(int64_t{1}, int64_t{4}));
  for (const int32_t stage : {0, 1}) {
    EXPECT_EQ(span(shared, stage, 0), std::pair(int64_t{0}, int64_t{5})) << stage;
    EXPECT_EQ(span(shared, stage, 1), std::pair(int64_t{2}, int64_t{7})) << stage;
  }
}

// An overlap is one slot of the list, so what ends in it and what begins in it do not share.
TEST(ActivationSlots, AnOverlapIsOnePosition) {
  EXPECT_EQ(activation_slots(parse_csv("0F0,0F1,0B0,0B1\n"), Rank(0)).num_slots(), 2);
  EXPECT_EQ(activation_slots(parse_csv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n"), Rank(0)).num_slots(), 2);
  EXPECT_EQ(activation_slots(parse_csv("0F0,,0B0,0F1,0B1\n"), Rank(0)).num_slots(), 1);
}

TEST(ActivationSlots, WEndsAnActivationAndIDoesNot) {
  const Schedule schedule = parse_csv("0F0,0I0,0F1,0W0,0I1,0W1\n");
  EXPECT_EQ(activation_slots(schedule, Rank(0)).num_slots(), 2);
  EXPECT_EQ(activation_slots(schedule, Rank(0)).get(StageId(0), MicrobatchId(0)).last, 3);
}

// The numbers of torch 2.15, for compute and lowered lists.
TEST(ActivationSlots, CountsAreThoseOfTorch) {
  struct Row {
    std::string_view name;
    std::vector<int32_t> pairs;
    std::vector<int32_t> microbatches;
  };
  const std::vector<Row> rows = {
      {"LoopedBFS", {16, 16, 16, 16}, {8, 8, 8, 8}},
      {"Interleaved1F1B", {11, 9, 7, 5}, {8, 8, 7, 5}},
      {"InterleavedZeroBubble", {8, 8, 8, 8}, {8, 8, 8, 8}},
      {"ZBVZeroBubble", {8, 8, 8, 8}, {8, 7, 6, 5}},
      {"DualPipeV", {9, 9, 9, 9}, {8, 7, 6, 5}},
  };
  for (const Row& row : rows) {
    const Schedule compute =
        build_schedule(row.name, {.ranks = 4, .microbatches = 8, .stages_per_rank = 2});
    const Schedule lowered = lower(compute, {.target = LowerTarget::kTorch215});
    for (const Schedule& schedule : {compute, lowered}) {
      std::vector<int32_t> pairs;
      std::vector<int32_t> microbatches;
      for (Rank rank(0); rank.value() < 4; ++rank) {
        pairs.push_back(activation_slots(schedule, rank).num_slots());
        microbatches.push_back(
            activation_slots(schedule, rank, SlotGranularity::kMicrobatch).num_slots());
      }
      EXPECT_EQ(pairs, row.pairs) << row.name;
      EXPECT_EQ(microbatches, row.microbatches) << row.name;
    }
  }
}

// No two activations that are alive at the same position share a slot, and there are no more slots
// than activations alive at one time.
TEST(ActivationSlots, AreAsFewAsCanBe) {
  for (const ScheduleKind& kind : schedule_kinds()) {
    if (!kind.has_backward) continue;
    const Schedule schedule = build_schedule(kind.name, {.ranks = 3, .microbatches = 7});
    for (Rank rank(0); rank.value() < 3; ++rank) {
      const ActivationSlots slots = activation_slots(schedule, rank);
      const auto all = slots.activations();
      int64_t most = 0;
      for (const auto& a : all) {
        most = std::max<int64_t>(most, std::count_if(all.begin(), all.end(), [&](const auto& b) {
                                   return b.first <= a.first && b.last >= a.first;
                                 }));
        for (const auto& b : all) {
          if (a == b || a.slot != b.slot) continue;
          EXPECT_TRUE(a.last < b.first || b.last < a.first) << kind.name;
        }
      }
      EXPECT_EQ(slots.num_slots(), most) << kind.name;
    }
  }
}

TEST(ActivationSlots, RefusesWhatHasNone) {
  const auto of = [](std::string_view csv, std::vector<StageId> stages = {StageId(0)},
                     Rank rank = Rank(0)) {
    return activation_slots(parse_csv(csv), rank, stages);
  };
  EXPECT_ERROR(of("0F0,0B0\n", {}), ArgumentError, "expected at least 1 stage, got none");
  EXPECT_ERROR(of("0F0,0B0\n", {StageId(0), StageId(0)}), ArgumentError,
               "activation_slots: stage 0 is given twice");
  EXPECT_ERROR(of("0F0,0B0\n1F0,1B0\n", {StageId(1)}), ArgumentError,
               "activation_slots: stage 1 is not on rank 0");
  EXPECT_ERROR(of("0F0,0B0\n", {StageId(0)}, Rank(1)), ArgumentError, "there is no rank 1");
  EXPECT_ERROR(activation_slots(parse_csv("0F0,0B0\n"), Rank(1)), ArgumentError,
               "there is no rank 1");
  EXPECT_ERROR(of("0F0,0F0,0B0\n"), ArgumentError,
               "activation_slots: 0F0 comes a second time, at slot 1");
  EXPECT_ERROR(of("0F0,0I0,0I0,0W0\n"), ArgumentError, "0I0 comes a second time, at slot 2");
  EXPECT_ERROR(of("0F0,0B0,0B0\n"), ArgumentError, "0B0 comes a second time, at slot 2");
  EXPECT_ERROR(of("0F0,0I0,0B0,0W0\n"), ArgumentError, "0W0 comes a second time, at slot 3");
  EXPECT_ERROR(of("0F0,0W0\n"), ArgumentError, "activation_slots: 0W0 comes without its I");
  EXPECT_ERROR(of("0B0,0F0\n"), ArgumentError,
               "activation_slots: 0F0 comes after its backward, at slot 1");
  EXPECT_ERROR(of("0F0\n"), ArgumentError,
               "activation_slots: stage 0 lacks the F, or the B or W, of microbatch 0");
  EXPECT_ERROR(of("0F0,0B0,0F2,0B2\n"), ArgumentError, "of microbatch 1");
  EXPECT_ERROR(of("0F0,0B0,0F2147483646\n"), ArgumentError, "of microbatch 1");
}

}  // namespace
}  // namespace stagecraft
