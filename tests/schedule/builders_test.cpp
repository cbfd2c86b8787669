#include "stagecraft/schedule/builders/builders.h"

#include "stagecraft/base/error.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/schedule/passes/lower.h"
#include "stagecraft/schedule/verify.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

std::string csv(std::string_view name, int32_t ranks, int32_t microbatches, int32_t per_rank = 1) {
  return to_csv(build_schedule(
      name, {.ranks = ranks, .microbatches = microbatches, .stages_per_rank = per_rank}));
}

TEST(Builders, GPipeAnd1F1BAreWhatTheyAreInThePapers) {
  EXPECT_EQ(csv("GPipe", 2, 3), "0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1F1,1F2,1B0,1B1,1B2\n");
  EXPECT_EQ(csv("1F1B", 2, 3), "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n");
  EXPECT_EQ(csv("ForwardOnly", 2, 2, 2), "0F0,0F1,2F0,2F1\n1F0,1F1,3F0,3F1\n");
}

TEST(Builders, OneFOneBTakesFewerMicrobatchesThanRanks) {
  EXPECT_EQ(csv("1F1B", 3, 1), "0F0,0B0\n1F0,1B0\n2F0,2B0\n");
  EXPECT_EQ(csv("1F1B", 3, 2), "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n2F0,2B0,2F1,2B1\n");
}

TEST(Builders, InterleavedTakesAnyNumberOfMicrobatches) {
  // PyTorch refuses 5 microbatches on 2 ranks: rounds of 3 and 2.
  EXPECT_EQ(
      csv("Interleaved1F1B", 2, 5, 2),
      "0F0,0F1,0F2,2F0,2F1,,2F2,2B0,0F3,2B1,0F4,2B2,2F3,0B0,2F4,0B1,,0B2,,2B3,,2B4,,0B3,,0B4\n"
      ",1F0,1F1,1F2,3F0,3B0,3F1,3B1,3F2,3B2,1F3,1B0,1F4,1B1,3F3,1B2,3F4,3B3,,3B4,,1B3,,1B4\n");
}

// The drawing of builders/hanayo.cpp, with one wave: stages 0 1 2 2 1 0.
TEST(Builders, HanayoIsAWave) {
  EXPECT_EQ(csv("Hanayo", 3, 3, 2),
            "0F0,0F1,0F2,5F0,5B0,5F1,5B1,5F2,5B2,0B0,0B1,0B2\n"
            "1F0,1F1,1F2,4F0,4F1,4B0,4F2,4B1,1B0,4B2,1B1,1B2\n"
            "2F0,3F0,2F1,3F1,2F2,3F2,3B0,2B0,3B1,2B1,3B2,2B2\n");
  EXPECT_EQ(to_string(build_schedule("Hanayo", {3, 3, 4}).placement()), "0 1 2 2 1 0 0 1 2 2 1 0");
}

// Every shape within a schedule's limits gives a schedule that can be executed, lowered too; every
// other shape is refused.
TEST(Builders, AllShapesAreExecutable) {
  int built = 0;
  for (const ScheduleKind& kind : schedule_kinds()) {
    for (int32_t p = 1; p <= 6; ++p) {
      for (int32_t l = 1; l <= 4; ++l) {
        for (int32_t m = 1; m <= 20; ++m) {
          const ScheduleShape shape{.ranks = p, .microbatches = m, .stages_per_rank = l};
          const auto lower_it = [&] { return lower(build_schedule(kind.name, shape)); };
          if (!kind.takes({p, l, m})) {
            EXPECT_ERROR(lower_it(), ArgumentError, "the nearest legal value");
            continue;
          }
          const Schedule lowered = lower_it();  // verifies after each pass
          EXPECT_EQ(lowered.num_stages(), p * l);
          EXPECT_EQ(lowered.num_microbatches(), m);
          ++built;
        }
      }
    }
  }
  EXPECT_GT(built, 2000);
}

TEST(Builders, AreFoundWithoutRegardToCase) {
  EXPECT_EQ(get_schedule_kind("zbvzerobubble").name, "ZBVZeroBubble");
  EXPECT_EQ(get_schedule_kind("1f1b").name, "1F1B");
  EXPECT_EQ(find_schedule_kind("ZBH1"), nullptr);
  EXPECT_ERROR(get_schedule_kind("ZBH1"), ArgumentError,
               "there is no schedule 'ZBH1'; the schedules are GPipe, 1F1B, LoopedBFS");
  for (const ScheduleKind& kind : schedule_kinds()) {
    EXPECT_EQ(find_schedule_kind(kind.name), &kind);
    EXPECT_ERROR(get_schedule_kind("ZBH1"), ArgumentError, std::string(kind.name));
  }
}

TEST(Builders, NameTheNearestLegalValue) {
  EXPECT_ERROR(csv("GPipe", 2, 2, 2), ArgumentError,
               "GPipe takes 1 stage a rank, got 2; the nearest legal value is 1");
  EXPECT_ERROR(csv("ZBVZeroBubble", 2, 2, 3), ArgumentError,
               "ZBVZeroBubble takes 2 stages a rank, got 3; the nearest legal value is 2");
  EXPECT_ERROR(csv("ZBVZeroBubble", 2, 2, 1), ArgumentError, "the nearest legal value is 2");
  EXPECT_ERROR(csv("Hanayo", 2, 2, 3), ArgumentError,
               "Hanayo takes a multiple of 2 stages a rank, got 3; the nearest legal values are 2 "
               "and 4");
  EXPECT_ERROR(csv("Hanayo", 2, 2, 1), ArgumentError, "got 1; the nearest legal value is 2");
  EXPECT_ERROR(csv("Hanayo", 2, 2, INT32_MAX), ArgumentError,
               "the nearest legal value is 2147483646");
  EXPECT_ERROR(csv("DualPipeV", 4, 7, 2), ArgumentError,
               "DualPipeV with 4 ranks (8 stages) needs at least 8 microbatches, got 7; the "
               "nearest legal value is 8");
  EXPECT_ERROR(csv("GPipe", 0, 2), ArgumentError, "the number of ranks must be at least 1, got 0");
  EXPECT_ERROR(csv("LoopedBFS", 2, -1, 2), ArgumentError, "number of microbatches");
  EXPECT_ERROR(csv("LoopedBFS", 2, 1, 0), ArgumentError, "number of stages per rank");
  EXPECT_ERROR(csv("1F1B", INT32_MAX, 1), ArgumentError, "at most 2048 ranks");
  EXPECT_ERROR(csv("LoopedBFS", 2048, INT32_MAX, INT32_MAX), ArgumentError, "too many");
}

TEST(Builders, DefaultStagesPerRankSuitTheSchedule) {
  for (const ScheduleKind& kind : schedule_kinds()) {
    const int32_t l = kind.default_stages_per_rank;
    EXPECT_TRUE(kind.stages_per_rank.contains(l)) << kind.name;
    const Schedule schedule =
        build_schedule(kind.name, {.ranks = 2, .microbatches = kind.min_microbatches(2, l)});
    EXPECT_EQ(schedule.num_stages(), 2 * l) << kind.name;
    EXPECT_EQ(schedule.level(), Level::kCompute);
    EXPECT_EQ(infer_mode(schedule) == VerifyMode::kTraining, kind.has_backward);
  }
}

}  // namespace
}  // namespace stagecraft
