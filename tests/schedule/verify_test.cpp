#include "stagecraft/schedule/verify.h"

#include "stagecraft/base/error.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/schedule/passes/add_transfers.h"
#include "stagecraft/schedule/passes/lower.h"
#include "stagecraft/schedule/passes/reduce_grads.h"
#include "stagecraft/schedule/text.h"
#include "stagecraft/sim/unit_steps.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> findings(std::string_view csv, const VerifyOptions& options = {},
                                  std::string_view skips = "") {
  const Schedule schedule = parse_csv(csv);
  const StageGraph graph =
      StageGraph::chain(std::max(schedule.num_stages(), 1)).with_edges(parse_edges(skips));
  std::vector<std::string> texts;
  for (const Finding& finding : verify(schedule, graph, options).findings) {
    texts.push_back(to_string(finding));
  }
  return texts;
}

// [1] The smallest lowered schedule of two ranks; the tests below break it.
constexpr std::string_view kGood =
    "0F0,0SEND_F0,0RECV_B0,0B0\n"
    "1RECV_F0,1F0,1B0,1SEND_B0\n";

TEST(Verify, AcceptsWhatRuns) {
  EXPECT_THAT(findings(kGood), ElementsAre());
  EXPECT_THAT(findings("0F0,0B0\n1F0,1I0,1W0\n"), ElementsAre());
}

TEST(Verify, NamesWhatIsMissing) {
  EXPECT_THAT(findings("0F0,0F1,0B0,0B1\n1F0,1F1,1B0\n"), ElementsAre("1B1: is missing on rank 1"));
  EXPECT_THAT(findings("0F0,0I0\n"), ElementsAre("0W0: is missing on rank 0"));
  EXPECT_THAT(findings("0F0,0W0\n"), ElementsAre("0I0: is missing on rank 0"));
  EXPECT_THAT(findings("0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
              ElementsAre("0RECV_B0: is missing on rank 0"));
  EXPECT_THAT(findings("0F0,0B0\n2F0,2B0\n"), testing::Contains("no rank holds stage 1"));
  EXPECT_THAT(findings("0F0,0B0\n", {.microbatches = 2}),
              ElementsAre("0F1: is missing on rank 0", "0B1: is missing on rank 0"));
}

TEST(Verify, NamesWhatIsThereTwice) {
  EXPECT_THAT(findings("0F0,0B0,0F0\n"),
              ElementsAre("rank 0, slot 2, 0F0: comes a second time; first at slot 0"));
  EXPECT_THAT(findings("0F0,0B0,0W0\n"),
              ElementsAre("rank 0, slot 2, 0W0: 0B0 includes it already"));
}

TEST(Verify, NamesWhatIsOnTheWrongRank) {
  EXPECT_THAT(findings("0F0,0B0\n1F0,0B1,1B0\n"),
              testing::Contains("rank 1, slot 1, 0B1: stage 0 is on rank 0"));
  EXPECT_THAT(findings("0F0,0B0\n\n"), ElementsAre("rank 1: has no stage"));
}

TEST(Verify, NamesWhatDoesNotBelongHere) {
  EXPECT_THAT(findings("0F0,0SEND_F0,0B0\n"),
              ElementsAre("rank 0, slot 1, 0SEND_F0: stage 0 is read by no stage on another rank"));
  EXPECT_THAT(findings("0F0,,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
              ElementsAre("rank 0, slot 1: a lowered schedule has no idle slots"));
  EXPECT_THAT(findings("0F0,0B0\n", {.mode = VerifyMode::kForwardOnly}),
              ElementsAre("rank 0, slot 1, 0B0: a forward-only schedule has no backward"));
  EXPECT_THAT(findings("0F0,0B0,0F1,0B1\n", {.microbatches = 1}),
              ElementsAre("rank 0, slot 2, 0F1: there are 1 microbatches",
                          "rank 0, slot 3, 0B1: there are 1 microbatches"));
  const Schedule compute(Level::kCompute, Placement::loop(2, 2), parse_csv(kGood).lists());
  EXPECT_EQ(to_string(verify(compute).findings.front()),
            "rank 0, slot 1, 0SEND_F0: a compute schedule has no transfers");
}

TEST(Verify, NamesWhatComesTooEarly) {
  EXPECT_THAT(findings("0B0,0F0\n"),
              ElementsAre("rank 0, slot 0, 0B0: needs 0F0, which comes later, at slot 1"));
  EXPECT_THAT(findings("0F0,0W0,0I0\n"),
              ElementsAre("rank 0, slot 1, 0W0: needs 0I0, which comes later, at slot 2"));
  EXPECT_THAT(findings("0SEND_F0,0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
              ElementsAre("rank 0, slot 0, 0SEND_F0: needs 0F0, which comes later, at slot 1"));
  EXPECT_THAT(findings("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1RECV_F0,1B0,1SEND_B0\n"),
              ElementsAre("rank 1, slot 0, 1F0: needs 1RECV_F0, which comes later, at slot 1"));
  EXPECT_THAT(findings("0F0,(1F0;0B0)OVERLAP_F_B,1B0\n"),
              ElementsAre("rank 0, slot 1, (1F0;0B0)OVERLAP_F_B: needs 1B0, which comes later, at "
                          "slot 2"));
  EXPECT_THAT(findings("(0F0;0B0)OVERLAP_F_B\n"),
              ElementsAre("rank 0, slot 0, (0F0;0B0)OVERLAP_F_B: needs 0F0, a part of the same "
                          "overlap"));
}

TEST(Verify, PrintsTheCycleOfRanksThatWaitForEachOther) {
  const Schedule schedule = parse_csv("0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n");
  const Verdict verdict = verify(schedule);
  ASSERT_EQ(verdict.findings.size(), 1U);
  EXPECT_EQ(verdict.findings[0].kind, FindingKind::kDeadlock);
  EXPECT_EQ(to_string(verdict.findings[0]),
            "rank 0, slot 1, 0B0: ranks wait for each other: rank 0 at slot 1, 0B0, waits for 1B0 "
            "(rank 1, slot 2); rank 1 at slot 0, 1F1, waits for 0F1 (rank 0, slot 2)");
  EXPECT_THAT(verdict.findings[0].cycle, ElementsAre("0B0", "1B0", "1F1", "0F1"));
}

// Both ranks send before they post the receive: fine with buffers, stuck without.
TEST(Verify, CountsOnNoBuffers) {
  EXPECT_THAT(findings("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                       "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n"),
              ElementsAre(HasSubstr("rank 0 at slot 3, 0SEND_F1, waits for 1RECV_F1 (rank 1, slot "
                                    "4); rank 1 at slot 3, 1SEND_B0, waits for 0RECV_B0")));
}

TEST(Verify, FollowsSkipEdges) {
  constexpr std::string_view kChain =
      "0F0,0SEND_F0,0RECV_B0,0B0\n"
      "1RECV_F0,1F0,1SEND_F0,1RECV_B0,1B0,1SEND_B0\n"
      "2RECV_F0,2F0,2B0,2SEND_B0\n";
  EXPECT_THAT(findings(kChain), ElementsAre());
  // With 0-2 the receive of stage 2 has to be posted when stage 0 sends: it is.
  EXPECT_THAT(findings(kChain, {}, "0-2"), ElementsAre());
  // Stages 0 and 2 on one rank: nothing goes from 0 to 2 but through 1.
  EXPECT_THAT(findings("0F0,0SEND_F0,2RECV_F0,2F0,2B0,2SEND_B0,0RECV_B0,0B0\n"
                       "1RECV_F0,1F0,1SEND_F0,1RECV_B0,1B0,1SEND_B0\n",
                       {}, "0-2"),
              ElementsAre());
  // 1-3 leaves the rank of 1 and needs a transfer that is not there.
  EXPECT_THAT(
      findings("0F0,1F0,2F0,2SEND_F0,2RECV_B0,2B0,1B0,0B0\n3RECV_F0,3F0,3B0,3SEND_B0\n", {}, "1-3"),
      ElementsAre("1SEND_F0: is missing on rank 0", "1RECV_B0: is missing on rank 0"));
}

TEST(Verify, ChecksSharding) {
  EXPECT_THAT(findings("0UNSHARD,0F0,0B0,0RESHARD\n"), ElementsAre());
  EXPECT_THAT(findings("0UNSHARD,0F0,0RESHARD,0B0\n"),
              ElementsAre("rank 0, slot 3, 0B0: the stage is resharded here"));
  EXPECT_THAT(findings("0F0,0UNSHARD,0B0,0RESHARD\n"),
              ElementsAre("rank 0, slot 0, 0F0: comes before the stage is unsharded, at slot 1"));
  EXPECT_THAT(
      findings("0UNSHARD,0F0,0UNSHARD,0B0,0RESHARD\n"),
      ElementsAre("rank 0, slot 2, 0UNSHARD: the stage is unsharded already, since slot 0"));
  EXPECT_THAT(findings("0F0,0B0,0RESHARD\n"),
              ElementsAre("rank 0, slot 2, 0RESHARD: the stage is not unsharded here"));
  EXPECT_THAT(findings("0UNSHARD,0F0,0B0\n"),
              ElementsAre("rank 0, slot 0, 0UNSHARD: the stage is never resharded"));
}

TEST(Verify, CountsActiveStages) {
  constexpr std::string_view kTwo = "0UNSHARD,1UNSHARD,0F0,1F0,1B0,1RESHARD,0B0,0RESHARD\n";
  EXPECT_THAT(findings(kTwo, {.max_active_stages = 2}), ElementsAre());
  EXPECT_THAT(
      findings(kTwo, {.max_active_stages = 1}),
      ElementsAre("rank 0, slot 1, 1UNSHARD: 2 stages would be unsharded at once, at most 1 "
                  "may be"));
  EXPECT_THAT(findings("0UNSHARD,0F0,0RESHARD,1UNSHARD,1F0,1B0,1RESHARD,0UNSHARD,0B0,0RESHARD\n",
                       {.max_active_stages = 1}),
              ElementsAre());
}

TEST(Verify, CountsStagesAhead) {
  constexpr std::string_view kTwo =
      "0UNSHARD,1UNSHARD,0F0,0F1,1F0,1F1,1B0,1B1,1RESHARD,0B0,0B1,0RESHARD\n";
  EXPECT_THAT(findings(kTwo, {.unshard_lookahead = {2}}), ElementsAre());
  EXPECT_THAT(findings(kTwo, {.unshard_lookahead = {1}}),
              ElementsAre("rank 0, slot 1, 1UNSHARD: the stage is unsharded further ahead than a "
                          "lookahead of 1"));
  EXPECT_THAT(findings("0UNSHARD,0F0,0F1,1UNSHARD,1F0,1F1,1B0,1B1,1RESHARD,0B0,0B1,0RESHARD\n",
                       {.unshard_lookahead = {1}}),
              ElementsAre());
  EXPECT_ERROR(findings(kTwo, {.unshard_lookahead = {1, 1}}), ArgumentError,
               "expected a lookahead of at least 1 for each of 1 ranks, got 2 numbers");
  EXPECT_ERROR(findings(kTwo, {.unshard_lookahead = {0}}), ArgumentError, "the smallest 0");
}

TEST(Verify, ChecksReduceGrad) {
  EXPECT_THAT(findings("0F0,0B0,0REDUCE_GRAD\n"), ElementsAre());
  EXPECT_THAT(findings("0F0,0I0,0REDUCE_GRAD,0W0\n"),
              ElementsAre("rank 0, slot 3, 0W0: comes after 0REDUCE_GRAD, at slot 2"));
  EXPECT_THAT(findings("0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD\n"),
              ElementsAre("rank 0, slot 3, 0REDUCE_GRAD: comes a second time; first at slot 2"));
  EXPECT_THAT(findings("0F0,1F0,1B0,0B0,0REDUCE_GRAD\n"),
              ElementsAre("1REDUCE_GRAD: is missing, but other stages have it"));
}

TEST(Verify, ChecksWaitsForReductions) {
  EXPECT_THAT(findings("0F0,0B0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n"), ElementsAre());
  EXPECT_THAT(
      findings("0F0,0B0,0WAIT_REDUCE_GRAD,0REDUCE_GRAD\n"),
      ElementsAre(
          "rank 0, slot 2, 0WAIT_REDUCE_GRAD: there is no earlier 0REDUCE_GRAD to wait for"));
  EXPECT_THAT(
      findings("0F0,0B0,0WAIT_REDUCE_GRAD\n"),
      ElementsAre(
          "rank 0, slot 2, 0WAIT_REDUCE_GRAD: there is no earlier 0REDUCE_GRAD to wait for"));
  EXPECT_THAT(
      findings("0F0,0B0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0WAIT_REDUCE_GRAD\n"),
      ElementsAre("rank 0, slot 4, 0WAIT_REDUCE_GRAD: comes a second time; first at slot 3"));
  EXPECT_THAT(findings("0F0,1F0,1B0,1REDUCE_GRAD,1WAIT_REDUCE_GRAD,0B0,0REDUCE_GRAD\n"),
              ElementsAre("0WAIT_REDUCE_GRAD: is missing, but other stages have it"));
  constexpr VerifyOptions kPartial{.mode = VerifyMode::kPartial};
  EXPECT_THAT(findings("0WAIT_REDUCE_GRAD\n", kPartial), ElementsAre());
  EXPECT_THAT(findings("0WAIT_REDUCE_GRAD,0REDUCE_GRAD\n", kPartial),
              ElementsAre("rank 0, slot 1, 0REDUCE_GRAD: comes after its wait, at slot 0"));
}

TEST(Verify, ChecksWaitsForSends) {
  const std::string other = "1RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0\n";
  EXPECT_THAT(findings("0F0,0SEND_F0,0RECV_B0,0B0,0WAIT_SEND_F0\n" + other), ElementsAre());
  EXPECT_THAT(findings("0F0,0SEND_F0,0RECV_B0,0B0\n" + other),
              ElementsAre("0WAIT_SEND_F0: is missing on rank 0"));
  EXPECT_THAT(findings("0F0,0SEND_F0,0RECV_B0,0B0,0WAIT_SEND_F0,0WAIT_SEND_B0\n" + other),
              ElementsAre("rank 0, slot 5, 0WAIT_SEND_B0: there is no 0SEND_B0 to wait for"));
  EXPECT_THAT(findings("0F0,0SEND_F0,0WAIT_SEND_F0,0RECV_B0,0B0,0WAIT_SEND_F0\n" + other),
              ElementsAre("rank 0, slot 5, 0WAIT_SEND_F0: comes a second time; first at slot 2"));
  EXPECT_THAT(
      findings("0F0,0WAIT_SEND_F0,0SEND_F0,0RECV_B0,0B0\n" + other),
      ElementsAre("rank 0, slot 1, 0WAIT_SEND_F0: needs 0SEND_F0, which comes later, at slot 2"));
  EXPECT_THAT(findings("0F0,0WAIT_SEND_F0,0B0\n", {.mode = VerifyMode::kPartial}), ElementsAre());
  EXPECT_THAT(
      verify(Schedule(Level::kCompute, Placement::loop(1, 1),
                      {parse_actions("0F0,0B0,0WAIT_SEND_F0")}))
          .findings,
      testing::Contains(testing::Field(&Finding::message, "a compute schedule has no transfers")));
  constexpr VerifyOptions kForward{.mode = VerifyMode::kForwardOnly};
  EXPECT_THAT(findings("0F0,0SEND_F0,0WAIT_SEND_F0\n1RECV_F0,1F0\n", kForward), ElementsAre());
}

TEST(Verify, FindsRanksThatWaitForEachOtherThroughWaits) {
  // Each rank waits for its send before it posts the receive that the other rank's send needs.
  EXPECT_THAT(
      findings("0F0,0SEND_F0,0WAIT_SEND_F0,0F1,0SEND_F1,0WAIT_SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
               "1RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1WAIT_SEND_B1\n"),
      ElementsAre(testing::HasSubstr("ranks wait for each other: rank 0 at slot 5, 0WAIT_SEND_F1, "
                                     "waits for 1RECV_F1 (rank 1, slot 5); rank 1 at slot 4, "
                                     "1WAIT_SEND_B0")));
}

// Both ranks send before they receive.
TEST(Verify, ASendOnlyPostsWhereAWaitFollows) {
  EXPECT_THAT(
      findings("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0WAIT_SEND_F0,0WAIT_SEND_F1,0RECV_B1,0B0,0B1\n"
               "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1WAIT_SEND_B0,1WAIT_SEND_B1\n"),
      ElementsAre());
  EXPECT_THAT(
      findings("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0RECV_B1,0B0,0B1\n"
               "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n"),
      ElementsAre(testing::HasSubstr("ranks wait for each other: rank 0 at slot 3, 0SEND_F1, "
                                     "waits for 1RECV_F1")));
}

TEST(Verify, JudgesForwardOnlyAndPartialSchedulesInTheirOwnMode) {
  constexpr VerifyOptions kForward{.mode = VerifyMode::kForwardOnly};
  EXPECT_THAT(findings("0F0,0F1\n1F0,1F1\n", kForward), ElementsAre());
  EXPECT_THAT(findings("0F0,0F1\n1F0\n", kForward), ElementsAre("1F1: is missing on rank 1"));
  EXPECT_THAT(findings("0F0,0F1\n1F0,1F1\n"), testing::SizeIs(4));

  constexpr VerifyOptions kPartial{.mode = VerifyMode::kPartial};
  EXPECT_THAT(findings("0F4,0B3\n1F4\n", kPartial), ElementsAre());
  EXPECT_THAT(findings("0B3,0F3\n", kPartial),
              ElementsAre("rank 0, slot 0, 0B3: needs 0F3, which comes later, at slot 1"));
  EXPECT_THAT(findings("0F3,0B3,0I3\n", kPartial),
              ElementsAre("rank 0, slot 2, 0I3: 0B3 includes it already"));
}

TEST(Verify, JudgesPiecesOfGoodSchedulesAsGood) {
  for (const ScheduleKind& kind : schedule_kinds()) {
    const Schedule lowered = lower(build_schedule(kind.name, {.ranks = 3, .microbatches = 7}));
    const VerifyOptions partial{.mode = VerifyMode::kPartial};
    EXPECT_TRUE(verify(lowered, partial).ok()) << kind.name;
    // The first steps of a run, and what is left after them.
    for (const int64_t until : {1, 5, 17, 40}) {
      std::vector<ActionList> head(3);
      std::vector<ActionList> tail(3);
      const UnitSteps run = simulate_unit_steps(lowered);
      for (std::size_t r = 0; r < 3; ++r) {
        std::size_t next = 0;
        for (const Slot& slot : SlotRange(lowered.lists()[r])) {
          while (next < run.ranks[r].size() && run.ranks[r][next].slot < slot.position()) ++next;
          const bool is_late = next == run.ranks[r].size() || run.ranks[r][next].step >= until;
          ActionList& list = is_late ? tail[r] : head[r];
          list.insert(list.end(), slot.actions().begin(), slot.actions().end());
        }
      }
      for (const auto& lists : {head, tail}) {
        const Verdict verdict =
            verify(Schedule(Level::kLowered, lowered.placement(), lists), partial);
        EXPECT_TRUE(verdict.ok()) << kind.name << ": " << to_string(verdict.findings.front());
      }
    }
  }
}

TEST(Verify, MissesTheSendOfAValueThatAPieceMakesAndReads) {
  constexpr VerifyOptions kPartial{.mode = VerifyMode::kPartial};
  EXPECT_THAT(findings("0F0\n1RECV_F0,1F0\n", kPartial),
              ElementsAre("0SEND_F0: is missing on rank 0"));
  EXPECT_THAT(findings("0RECV_B0,0B0\n1B0\n", kPartial),
              ElementsAre("1SEND_B0: is missing on rank 1"));
}

TEST(Verify, SurvivesAStageThatThePlacementDoesNotHave) {
  const Schedule schedule(Level::kCompute, Placement::loop(1, 1),
                          {parse_actions("0F0,900000F0,900000B0,0B0")});
  for (const VerifyMode mode :
       {VerifyMode::kTraining, VerifyMode::kForwardOnly, VerifyMode::kPartial}) {
    EXPECT_EQ(to_string(verify(schedule, {.mode = mode}).findings.front()),
              "rank 0, slot 1, 900000F0: no rank holds stage 900000");
  }
  EXPECT_ERROR(add_transfers(schedule), ScheduleError, "no rank holds stage 900000");
  EXPECT_ERROR(lower(schedule), ScheduleError, "no rank holds stage 900000");
  EXPECT_NO_THROW(reduce_grads(schedule));
  EXPECT_NO_THROW(shard_stages(schedule));
}

TEST(Verify, KeepsAsManyFindingsAsAsked) {
  const Schedule nothing = parse_csv("0F9\n");
  const Verdict verdict = verify(nothing, {.max_findings = 3});
  EXPECT_EQ(verdict.findings.size(), 3U);
  EXPECT_EQ(verdict.num_findings, 19U);
  EXPECT_FALSE(verify(nothing, {.max_findings = 0}).ok());
  EXPECT_FALSE(verify(parse_csv("0B0,0F0\n"), {.max_findings = 0}).ok());
  EXPECT_FALSE(verify(parse_csv("0F0,0F1,0B0\n"), {.max_findings = SIZE_MAX}).ok());
  EXPECT_ERROR(verify_or_throw(nothing, StageGraph::chain(1), "x", {.max_findings = 0}),
               ScheduleError, "x: 0F0: is missing");
}

// A few bytes of text can name 10^16 pairs of stage and microbatch.
TEST(Verify, IsNotDrownedByLargeNumbers) {
  EXPECT_FALSE(verify(parse_csv("1048575F2147483646\n")).ok());
  EXPECT_TRUE(verify(parse_csv("1048575F2147483646\n"), {.mode = VerifyMode::kPartial}).ok());
}

TEST(Verify, ThrowsWithTheActions) {
  const Schedule bad = parse_csv("0B0,0F0\n");
  try {
    verify_or_throw(bad, StageGraph::chain(1), "my schedule");
    FAIL();
  } catch (const ScheduleError& error) {
    EXPECT_STREQ(error.what(),
                 "my schedule: rank 0, slot 0, 0B0: needs 0F0, which comes later, at slot 1");
    EXPECT_THAT(error.actions(), ElementsAre("0B0"));
  }
  EXPECT_ERROR(verify(bad, StageGraph::chain(2)), ArgumentError,
               "the stage graph has 2 stages, but the schedule has 1");
}

}  // namespace
}  // namespace stagecraft
