#include "stagecraft/base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stagecraft/base/check.h"

namespace stagecraft {
namespace {

TEST(Error, ParseErrorStartsWithItsPlace) {
  const ParseError error("expected ')'", 3, 14);
  EXPECT_STREQ(error.what(), "line 3, column 14: expected ')'");
  EXPECT_EQ(error.line(), 3u);
  EXPECT_EQ(error.column(), 14u);
}

TEST(Error, StageErrorNamesPlaceAndCauseAndKeepsTheCause) {
  const auto cause = std::make_exception_ptr(std::out_of_range("no such row"));
  const StageError error({Rank(1), StageId(2), MicrobatchId(0), "2F0"}, cause);
  EXPECT_STREQ(error.what(), "rank 1, stage 2, microbatch 0, action 2F0: no such row");
  EXPECT_THROW(std::rethrow_exception(error.cause()), std::out_of_range);
}

TEST(Error, StageErrorWithoutAStandardCauseStillSaysWhere) {
  const StageError::Place place{Rank(0), StageId(0), MicrobatchId(3), "0B3"};
  EXPECT_STREQ(StageError(place, nullptr).what(),
               "rank 0, stage 0, microbatch 3, action 0B3: unknown cause");
  EXPECT_THAT(StageError(place, std::make_exception_ptr(7)).what(),
              testing::HasSubstr("unknown exception (not derived from std::exception)"));
}

TEST(Error, StageErrorLeavesOutWhatItsActionHasNot) {
  const auto cause = std::make_exception_ptr(std::out_of_range("no such row"));
  EXPECT_STREQ(StageError({Rank(1), StageId(2), MicrobatchId(-1), "2UNSHARD"}, cause).what(),
               "rank 1, stage 2, action 2UNSHARD: no such row");
  EXPECT_STREQ(StageError({Rank(1), StageId(-1), MicrobatchId(-1), ""}, cause).what(),
               "rank 1: no such row");
}

TEST(Error, StageErrorLeavesOutTheStackOfTheEngine) {
  const auto cause = std::make_exception_ptr(
      std::runtime_error("sizes differ\nException raised from f at a.cpp:1\nframe #0"));
  EXPECT_STREQ(StageError({Rank(0), StageId(0), MicrobatchId(0), "0F0"}, cause).what(),
               "rank 0, stage 0, microbatch 0, action 0F0: sizes differ");
}

TEST(Error, DescribeTakesAnyException) {
  EXPECT_EQ(describe(std::make_exception_ptr(std::out_of_range("no such row"))), "no such row");
  EXPECT_EQ(describe(std::make_exception_ptr(7)),
            "unknown exception (not derived from std::exception)");
  EXPECT_EQ(describe(nullptr), "unknown cause");
}

TEST(Error, ScheduleErrorCarriesTheActions) {
  const ScheduleError error("receive without send", {"1RECV_F0"});
  EXPECT_THAT(error.actions(), testing::ElementsAre("1RECV_F0"));
}

TEST(Error, PeerErrorNamesThePeer) {
  const PeerError error("connection lost", Rank(4));
  EXPECT_STREQ(error.what(), "rank 4: connection lost");
  EXPECT_EQ(error.peer(), Rank(4));
  EXPECT_EQ(error.cause(), nullptr);
}

TEST(Error, PeerErrorSaysTheRankOnce) {
  EXPECT_STREQ(PeerError("rank 4, stage 2: no such row", Rank(4)).what(),
               "rank 4, stage 2: no such row");
  EXPECT_STREQ(PeerError("rank 42 left", Rank(4)).what(), "rank 4: rank 42 left");
}

TEST(Error, PeerErrorKeepsTheCause) {
  const PeerError error("failed", Rank(1), std::make_exception_ptr(std::out_of_range("row 7")));
  EXPECT_THROW(std::rethrow_exception(error.cause()), std::out_of_range);
}

TEST(Error, AllAreCaughtAsErrorAndAsRuntimeError) {
  EXPECT_THROW(throw TimeoutError("5 s passed"), Error);
  EXPECT_THROW(throw MetadataError("shape"), std::runtime_error);
}

TEST(Check, RequireThrowsTheGivenTypeWithTheFormattedMessage) {
  EXPECT_NO_THROW(require<ArgumentError>(true, "never"));
  try {
    require<ArgumentError>(false, "chunks must be positive, got {}", -1);
    FAIL() << "did not throw";
  } catch (const ArgumentError& error) {
    EXPECT_STREQ(error.what(), "chunks must be positive, got -1");
  }
}

}  // namespace
}  // namespace stagecraft
