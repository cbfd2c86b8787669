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
              testing::HasSubstr("not a std::exception"));
}

TEST(Error, ScheduleErrorCarriesTheActions) {
  const ScheduleError error("receive without send", {"1RECV_F0"});
  EXPECT_THAT(error.actions(), testing::ElementsAre("1RECV_F0"));
}

TEST(Error, PeerErrorNamesThePeer) {
  const PeerError error("connection lost", Rank(4));
  EXPECT_STREQ(error.what(), "rank 4: connection lost");
  EXPECT_EQ(error.peer(), Rank(4));
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
