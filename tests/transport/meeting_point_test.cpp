// Collectives and recoveries of ranks whose frames are delivered by function calls.

#include "stagecraft/transport/wire/meeting_point.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "stagecraft/base/error.h"
#include "stagecraft/base/wait_tick.h"
#include "tests/support/expect_error.h"
#include "tests/transport/run_ranks.h"

namespace stagecraft::detail {
namespace {

using Outcome = MeetingResult::Outcome;

Deadline passed() {
  return Deadline::after(std::chrono::seconds(0));
}

struct SentFrame {
  Rank from;
  Rank to;
  FrameHead head;
  std::string body;
};

// Ranks that have a state of the world each, as processes do. A sent frame is handled at once, on
// the thread of its sender.
class MeetingRanks {
 public:
  explicit MeetingRanks(int32_t ranks) {
    for (Rank rank(0); rank.value() < ranks; ++rank) {
      worlds_.push_back(std::make_unique<WorldState>(ranks));
      points_.push_back(std::make_unique<MeetingPoint>(
          rank, *worlds_.back(),
          [this, rank](Rank to, const FrameHead& head, std::string_view body) {
            send({rank, to, head, std::string(body)});
          },
          [this, rank] {
            if (on_recovered) on_recovered(rank);
          }));
    }
  }

  WorldState& world(int32_t rank) { return *worlds_[static_cast<std::size_t>(rank)]; }
  MeetingPoint& operator[](int32_t rank) { return *points_[static_cast<std::size_t>(rank)]; }
  void deliver(const SentFrame& frame) {
    (*this)[frame.to.value()].on_frame(frame.from, frame.head, frame.body);
  }

  MeetingPoint::Result collective(int32_t rank, const std::string& bytes, Deadline deadline,
                                  uint64_t epoch = 0) {
    return (*this)[rank].meet(/*is_recovery=*/false, epoch, "all_gather", bytes, deadline);
  }
  MeetingPoint::Result recover(int32_t rank, Deadline deadline, uint64_t epoch = 0) {
    return (*this)[rank].meet(/*is_recovery=*/true, epoch, "recover", "", deadline);
  }

  // Whether a frame is held back.
  std::function<bool(const SentFrame&)> holds;
  // Called after a frame was delivered or held back.
  std::function<void(const SentFrame&)> after;
  std::function<void(Rank)> on_recovered;

 private:
  void send(const SentFrame& frame) {
    if (!holds || !holds(frame)) deliver(frame);
    if (after) after(frame);
  }

  std::vector<std::unique_ptr<WorldState>> worlds_;
  std::vector<std::unique_ptr<MeetingPoint>> points_;
};

TEST(MeetingPoint, EveryRankGetsWhatAllHaveBroughtByRank) {
  constexpr int32_t kRanks = 3;
  MeetingRanks ranks(kRanks);
  run_ranks(kRanks, [&](Rank rank) {
    for (uint64_t round = 0; round < 100; ++round) {
      const auto bytes_of = [&](int32_t r) {
        return std::to_string(r) + " in round " + std::to_string(round);
      };
      const auto result = ranks.collective(rank.value(), bytes_of(rank.value()), soon());
      ASSERT_EQ(result.outcome, Outcome::kMet);
      ASSERT_NE(result.met, nullptr);
      EXPECT_EQ(result.met->number, round);
      EXPECT_EQ(result.met->calls, std::vector<std::string>(kRanks, "all_gather"));
      EXPECT_EQ(result.met->bytes, (std::vector{bytes_of(0), bytes_of(1), bytes_of(2)}));
    }
  });
}

TEST(MeetingPoint, ATimeoutNamesTheRanksThatHaveNotCome) {
  MeetingRanks ranks(3);
  const auto of_two = ranks.collective(2, "", passed());
  EXPECT_EQ(of_two.outcome, Outcome::kTimedOut);
  EXPECT_EQ(of_two.missing, (std::vector{Rank(0), Rank(1)}));
  EXPECT_EQ(of_two.met, nullptr);
  // Rank 0 asks itself.
  EXPECT_EQ(ranks.collective(0, "", passed()).missing, (std::vector{Rank(1), Rank(2)}));
}

TEST(MeetingPoint, ARankThatWithdrewHasNotCome) {
  MeetingRanks ranks(2);
  EXPECT_EQ(ranks.collective(1, "first", passed()).outcome, Outcome::kTimedOut);
  const auto alone = ranks.collective(0, "first", passed());
  EXPECT_EQ(alone.outcome, Outcome::kTimedOut);
  EXPECT_EQ(alone.missing, std::vector{Rank(1)});

  MeetingPoint::Result of_zero;
  ranks.after = [&](const SentFrame& frame) {
    if (frame.head.kind == FrameKind::kCome) of_zero = ranks.collective(0, "second", passed());
  };
  const auto of_one = ranks.collective(1, "second", passed());
  ASSERT_EQ(of_one.outcome, Outcome::kMet);
  ASSERT_EQ(of_zero.outcome, Outcome::kMet);
  EXPECT_EQ(of_one.met->bytes, (std::vector<std::string>{"second", "second"}));
  EXPECT_EQ(of_zero.met->bytes, of_one.met->bytes);
}

TEST(MeetingPoint, ACollectiveThatTookPlaceBeforeTheWithdrawalCounts) {
  // The deadline passes, or the world is aborted, while the answer is on its way.
  for (const bool is_aborted : {false, true}) {
    MeetingRanks ranks(2);
    SentFrame answer;
    ranks.holds = [&](const SentFrame& frame) { return frame.head.kind == FrameKind::kMet; };
    ranks.after = [&](const SentFrame& frame) {
      if (frame.head.kind == FrameKind::kCome) {
        EXPECT_EQ(ranks.collective(0, "zero", passed()).outcome, Outcome::kMet);
        if (is_aborted) ranks.world(1).abort({Rank(0), "on purpose"}, [] {});
      } else if (frame.head.kind == FrameKind::kMet) {
        answer = frame;
      } else if (frame.head.kind == FrameKind::kWithdraw) {
        ranks.deliver(answer);
      } else {
        ADD_FAILURE() << "a collective that took place is not withdrawn";
      }
    };
    const auto result = ranks.collective(1, "one", is_aborted ? soon() : passed());
    ASSERT_EQ(result.outcome, Outcome::kMet);
    EXPECT_EQ(result.met->bytes, (std::vector<std::string>{"zero", "one"}));
  }
}

TEST(MeetingPoint, AnAnswerToAnEarlierAttemptIsIgnored) {
  MeetingRanks ranks(2);
  SentFrame late;
  ranks.holds = [&](const SentFrame& frame) { return frame.head.kind == FrameKind::kMet; };
  ranks.after = [&](const SentFrame& frame) {
    if (frame.head.kind == FrameKind::kMet) late = frame;
    if (frame.head.kind == FrameKind::kCome) ranks.collective(0, "first", passed());
  };
  // Rank 0 does not answer in time: it is the rank that is missing.
  EXPECT_EQ(ranks.collective(1, "first", passed()).missing, std::vector{Rank(0)});
  ranks.after = [&](const SentFrame& frame) {
    if (frame.head.kind == FrameKind::kCome) ranks.deliver(late);
  };
  const auto second = ranks.collective(1, "second", passed());
  EXPECT_EQ(second.outcome, Outcome::kTimedOut);
  EXPECT_EQ(second.met, nullptr);
}

TEST(MeetingPoint, RankZeroContinuesAfterAllOthersAreAnswered) {
  MeetingRanks ranks(3);
  int answered = 0;
  ranks.after = [&](const SentFrame& frame) {
    answered += frame.head.kind == FrameKind::kMet ? 1 : 0;
    if (frame.head.kind != FrameKind::kCome) return;
    if (frame.from == Rank(1)) {
      EXPECT_EQ(ranks.recover(2, passed()).outcome, Outcome::kMet);
    } else {
      EXPECT_EQ(ranks.recover(0, passed()).outcome, Outcome::kMet);
    }
  };
  ranks.on_recovered = [&](Rank rank) {
    if (rank == Rank(0)) {
      EXPECT_EQ(answered, 2);
    }
  };
  EXPECT_EQ(ranks.recover(1, passed()).outcome, Outcome::kMet);
  EXPECT_EQ(answered, 2);
}

// State of the calling thread in the kernel: 'S' if it sleeps.
char state_of(pid_t thread) {
  std::string line;
  std::getline(std::ifstream("/proc/self/task/" + std::to_string(thread) + "/stat"), line);
  const auto name_end = line.rfind(')');
  return name_end == std::string::npos ? '?' : line[name_end + 2];
}

// Meets on a thread of its own, and returns when that thread sleeps.
class SleepingRank {
 public:
  SleepingRank(MeetingRanks& ranks, int32_t rank, bool is_recovery) {
    result_ = std::async(std::launch::async, [this, &ranks, rank, is_recovery] {
      thread_ = gettid();
      return is_recovery ? ranks.recover(rank, deadline_) : ranks.collective(rank, "", deadline_);
    });
    while ((thread_ == 0 || state_of(thread_) != 'S') && !deadline_.has_passed()) {
      std::this_thread::yield();
    }
  }
  MeetingPoint::Result get() {
    MeetingPoint::Result result = result_.get();
    EXPECT_FALSE(deadline_.has_passed()) << "was not woken";
    return result;
  }

 private:
  const Deadline deadline_ = soon();
  std::atomic<pid_t> thread_{0};
  std::future<MeetingPoint::Result> result_;
};

TEST(MeetingPoint, AnAbortEndsACollective) {
  MeetingRanks ranks(2);
  SleepingRank one(ranks, 1, /*is_recovery=*/false);
  ranks.world(1).abort({Rank(0), "on purpose"}, [] {});
  ranks[1].wake();
  const auto result = one.get();
  EXPECT_EQ(result.outcome, Outcome::kAborted);
  EXPECT_TRUE(result.waited);
  // It has withdrawn.
  EXPECT_EQ(ranks.collective(0, "", passed()).missing, std::vector{Rank(1)});
}

TEST(MeetingPoint, ARankThatLeavesEndsCollectivesAndRecoveries) {
  for (const bool is_recovery : {false, true}) {
    MeetingRanks ranks(3);
    SleepingRank one(ranks, 1, is_recovery);
    ranks.world(1).leave(Rank(2));
    ranks[1].wake();
    const auto result = one.get();
    EXPECT_EQ(result.outcome, Outcome::kLeft);
    EXPECT_TRUE(result.waited);
  }
}

TEST(MeetingPoint, WhatHappenedBeforeTheCallEndsItBeforeAnythingIsSent) {
  MeetingRanks ranks(3);
  ranks.after = [](const SentFrame&) { ADD_FAILURE() << "a frame was sent"; };
  ranks.world(1).abort({Rank(0), "on purpose"}, [] {});
  const auto aborted = ranks.collective(1, "", soon());
  EXPECT_EQ(aborted.outcome, Outcome::kAborted);
  EXPECT_FALSE(aborted.waited);
  ranks.world(1).leave(Rank(2));
  const auto left = ranks.recover(1, soon());
  EXPECT_EQ(left.outcome, Outcome::kLeft);
  EXPECT_FALSE(left.waited);
}

TEST(MeetingPoint, ARankZeroThatHasLeftNeedNotAnswer) {
  MeetingRanks ranks(2);
  ranks.holds = [](const SentFrame&) { return true; };
  ranks.after = [&](const SentFrame&) { ranks.world(1).leave(Rank(0)); };
  EXPECT_EQ(ranks.collective(1, "", soon()).outcome, Outcome::kLeft);
}

TEST(MeetingPoint, AbortedRanksCanMeetToRecover) {
  MeetingRanks ranks(2);
  std::atomic<int> recovered{0};
  ranks.on_recovered = [&](Rank) { ++recovered; };
  run_ranks(2, [&](Rank rank) {
    ranks.world(rank.value()).abort({Rank(0), "on purpose"}, [] {});
    EXPECT_EQ(ranks.recover(rank.value(), soon()).outcome, Outcome::kMet);
    // This rank's own call has come before it continues.
    EXPECT_GE(recovered, 1);
  });
  EXPECT_EQ(recovered, 2);
}

TEST(MeetingPoint, OnlyRecoveriesCallOnRecovered) {
  MeetingRanks ranks(1);
  int recovered = 0;
  ranks.on_recovered = [&](Rank) { ++recovered; };
  EXPECT_EQ(ranks.collective(0, "", passed()).outcome, Outcome::kMet);
  EXPECT_EQ(recovered, 0);
  EXPECT_EQ(ranks.recover(0, passed()).outcome, Outcome::kMet);
  EXPECT_EQ(recovered, 1);
}

TEST(MeetingPoint, WhatARankBroughtBeforeARecoveryDoesNotCountAfterIt) {
  MeetingRanks ranks(2);
  // Rank 1 comes to a collective of epoch 0, and its withdrawal is lost.
  SentFrame early;
  ranks.holds = [&](const SentFrame& frame) {
    if (frame.head.kind == FrameKind::kCome) early = frame;
    return frame.head.kind == FrameKind::kWithdraw;
  };
  EXPECT_EQ(ranks.collective(1, "early", passed()).outcome, Outcome::kTimedOut);
  ranks.holds = {};
  ranks.after = [&](const SentFrame& frame) {
    if (frame.head.kind == FrameKind::kCome) ranks.recover(0, passed());
  };
  EXPECT_EQ(ranks.recover(1, passed()).outcome, Outcome::kMet);
  ranks.after = {};
  EXPECT_EQ(ranks.collective(0, "late", passed(), 1).missing, std::vector{Rank(1)});
  ranks.deliver(early);
  EXPECT_EQ(ranks.collective(0, "late", passed(), 1).missing, std::vector{Rank(1)});

  ranks.after = [&](const SentFrame& frame) {
    if (frame.head.kind == FrameKind::kCome) ranks.collective(0, "late", passed(), 1);
  };
  const auto result = ranks.collective(1, "late", passed(), 1);
  ASSERT_EQ(result.outcome, Outcome::kMet);
  EXPECT_EQ(result.met->bytes, (std::vector<std::string>{"late", "late"}));
}

TEST(MeetingPoint, ATickThatThrowsWithdraws) {
  MeetingRanks ranks(2);
  {
    const WaitTick tick([] { throw InterruptedError("interrupted"); });
    EXPECT_ERROR(ranks.collective(1, "", soon()), InterruptedError, "interrupted");
  }
  EXPECT_EQ(ranks.collective(0, "", passed()).missing, std::vector{Rank(1)});
}

TEST(MeetingPoint, AFrameForADifferentRankIsRefused) {
  MeetingRanks ranks(3);
  const auto frame = [](FrameKind kind) {
    FrameHead head;
    head.kind = kind;
    return head;
  };
  for (const FrameKind kind : {FrameKind::kCome, FrameKind::kWithdraw}) {
    EXPECT_ERROR(ranks[1].on_frame(Rank(2), frame(kind), ""), MetadataError,
                 "rank 1 received a frame of a collective that is not for it");
  }
  for (const FrameKind kind : {FrameKind::kMet, FrameKind::kWithdrawn}) {
    EXPECT_THROW(ranks[1].on_frame(Rank(2), frame(kind), ""), MetadataError);
  }
}

TEST(MeetingPoint, ADamagedFrameIsRefusedAndChangesNothing) {
  MeetingRanks ranks(2);
  FrameHead head;
  head.kind = FrameKind::kCome;
  EXPECT_THROW(ranks[0].on_frame(Rank(1), head, "x"), MetadataError);
  EXPECT_EQ(ranks.collective(0, "", passed()).missing, std::vector{Rank(1)});
  head.kind = FrameKind::kMet;
  EXPECT_THROW(ranks[1].on_frame(Rank(0), head, "too short"), MetadataError);
  EXPECT_EQ(ranks.collective(1, "", passed()).outcome, Outcome::kTimedOut);
}

}  // namespace
}  // namespace stagecraft::detail
