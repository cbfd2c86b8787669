// The state machines of the wire protocol, without a process and without a byte transport.

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "stagecraft/transport/core/pending.h"
#include "stagecraft/transport/wire/peer_state.h"
#include "stagecraft/transport/wire/reader_turn.h"
#include "stagecraft/transport/wire/sending.h"

namespace stagecraft::detail {
namespace {

using Turn = ReaderTurn::State;

class Value final : public Pending {
 public:
  bool is_done() const override { return false; }
};

PendingPtr a_value() {
  return std::make_shared<Value>();
}

TEST(ReaderTurn, OneThreadReadsAtATime) {
  ReaderTurn turn;
  EXPECT_EQ(turn.state(), Turn::kFree);
  ASSERT_TRUE(turn.take_thread());
  EXPECT_EQ(turn.state(), Turn::kThread);
  EXPECT_FALSE(turn.take_inline(a_value(), {}));
  EXPECT_EQ(turn.state(), Turn::kThread);
  turn.release();
  EXPECT_EQ(turn.state(), Turn::kFree);
  ASSERT_TRUE(turn.take_inline(a_value(), {}));
  EXPECT_EQ(turn.state(), Turn::kInline);
  EXPECT_FALSE(turn.take_inline(a_value(), {}));
  turn.release();
  EXPECT_EQ(turn.state(), Turn::kFree);
}

TEST(ReaderTurn, TheThreadFollowsAnInlineReader) {
  for (const bool is_thread_next : {true, false}) {
    ReaderTurn turn;
    ASSERT_TRUE(turn.take_inline(a_value(), {}));
    auto taken = std::async(std::launch::async, [&] { return turn.take_thread(); });
    turn.release(is_thread_next);
    EXPECT_TRUE(taken.get());
    EXPECT_EQ(turn.state(), Turn::kThread);
  }
}

TEST(ReaderTurn, TheThreadReleasesIfItIsAsked) {
  ReaderTurn turn;
  ASSERT_TRUE(turn.take_thread());
  EXPECT_TRUE(turn.take_inline(a_value(), [&] { turn.release(); }));
  EXPECT_EQ(turn.state(), Turn::kInline);
}

TEST(ReaderTurn, AThreadThatDoesNotReleaseKeepsTheTurn) {
  ReaderTurn turn;
  ASSERT_TRUE(turn.take_thread());
  int asked = 0;
  EXPECT_FALSE(turn.take_inline(a_value(), [&] { ++asked; }));
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(turn.state(), Turn::kThread);
}

TEST(ReaderTurn, AClosedTurnIsFinal) {
  ReaderTurn turn;
  turn.close();
  EXPECT_EQ(turn.state(), Turn::kClosed);
  EXPECT_FALSE(turn.take_thread());
  EXPECT_FALSE(turn.take_inline(a_value(), {}));
}

TEST(ReaderTurn, ClosingEndsTheThreadsWaitAndTheReaderMayFinish) {
  ReaderTurn turn;
  ASSERT_TRUE(turn.take_inline(a_value(), {}));
  auto taken = std::async(std::launch::async, [&] { return turn.take_thread(); });
  turn.close();
  EXPECT_FALSE(taken.get());
  EXPECT_EQ(turn.state(), Turn::kClosing);
  EXPECT_FALSE(turn.take_inline(a_value(), {}));
  turn.close();
  EXPECT_EQ(turn.state(), Turn::kClosing);
  turn.release();
  EXPECT_EQ(turn.state(), Turn::kClosed);
}

// A value whose only owner gives it up while the turn looks at it. Its destructor asks the turn.
class AbandonedValue final : public Pending {
 public:
  AbandonedValue(ReaderTurn& turn, PendingPtr& owner, std::future<Turn>& seen)
      : turn_(turn), owner_(owner), seen_(seen) {}
  ~AbandonedValue() override {
    seen_ = std::async(std::launch::async, [&turn = turn_] { return turn.state(); });
    is_answered = seen_.wait_for(std::chrono::seconds(5)) == std::future_status::ready;
  }
  bool is_done() const override {
    owner_.reset();
    return true;
  }

  static inline std::atomic<bool> is_answered{false};

 private:
  ReaderTurn& turn_;
  PendingPtr& owner_;
  std::future<Turn>& seen_;
};

TEST(ReaderTurn, AValueIsNotDestroyedUnderTheLock) {
  ReaderTurn turn;
  PendingPtr owner;
  std::future<Turn> seen;
  ASSERT_TRUE(turn.take_thread());
  owner = std::make_shared<AbandonedValue>(turn, owner, seen);
  EXPECT_FALSE(turn.take_inline(owner, {}));
  turn.release();
  EXPECT_TRUE(turn.take_thread());
  EXPECT_EQ(owner, nullptr);
  EXPECT_TRUE(AbandonedValue::is_answered);
}

TEST(ReaderTurnDeathTest, OnlyAReaderReleases) {
  ReaderTurn turn;
  EXPECT_DEATH(turn.release(), "SC_ASSERT");
  turn.close();
  EXPECT_DEATH(turn.release(), "SC_ASSERT");
}

using State = Sending::State;

TEST(Sending, IsSentWithItsLastPart) {
  Sending sending(2);
  EXPECT_FALSE(sending.finish_part(true));
  EXPECT_EQ(sending.state(), State::kInFlight);
  EXPECT_FALSE(sending.is_done());
  EXPECT_TRUE(sending.finish_part(true));
  EXPECT_EQ(sending.state(), State::kSent);
  EXPECT_TRUE(sending.is_done());
  EXPECT_FALSE(sending.is_lost());
}

TEST(Sending, IsLostWithItsFirstLostPartAndStaysLost) {
  Sending sending(3);
  sending.set_failure("no device");
  EXPECT_TRUE(sending.finish_part(false));
  EXPECT_EQ(sending.state(), State::kLost);
  EXPECT_EQ(sending.failure(), "no device");
  EXPECT_FALSE(sending.finish_part(true));
  EXPECT_TRUE(sending.finish_part(true));
  EXPECT_EQ(sending.state(), State::kLost);
}

// Parts end on several threads. Whatever their order, a loss is never taken for a success.
TEST(Sending, ALossIsNotHiddenByPartsThatEndAtTheSameTime) {
  for (int round = 0; round < 200; ++round) {
    Sending sending(4);
    std::vector<std::thread> threads;
    for (int part = 0; part < 4; ++part) {
      threads.emplace_back([&, part] { sending.finish_part(part != round % 4); });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(sending.state(), State::kLost);
  }
}

using Life = PeerState::State;

TEST(PeerState, APeerThatHasReadTheGoodbyeMayBeClosed) {
  PeerState peer;
  EXPECT_EQ(peer.state(), Life::kJoined);
  EXPECT_FALSE(peer.may_close());
  EXPECT_TRUE(peer.move_to(Life::kReleased));
  EXPECT_TRUE(peer.may_close());
  EXPECT_FALSE(peer.has_ended());
  EXPECT_FALSE(peer.move_to(Life::kReleased));
  EXPECT_TRUE(peer.move_to(Life::kClosed));
  EXPECT_TRUE(peer.has_ended());
  EXPECT_FALSE(peer.is_lost());
}

TEST(PeerState, TheFirstEndStands) {
  for (const Life first : {Life::kClosed, Life::kLost}) {
    PeerState peer;
    EXPECT_TRUE(peer.move_to(first));
    for (const Life next : {Life::kReleased, Life::kClosed, Life::kLost}) {
      EXPECT_FALSE(peer.move_to(next));
      EXPECT_EQ(peer.state(), first);
    }
    EXPECT_TRUE(peer.may_close());
  }
}

// The inbox, the watchdog and the watcher of processes may find a lost peer at the same time. One
// of them reports it.
TEST(PeerState, ALossIsReportedOnce) {
  for (int round = 0; round < 200; ++round) {
    PeerState peer;
    std::atomic<int> reports{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        if (i == 3) {
          peer.move_to(Life::kReleased);
        } else if (peer.move_to(Life::kLost)) {
          ++reports;
        }
      });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(reports, 1);
    EXPECT_TRUE(peer.is_lost());
  }
}

TEST(PeerStateDeathTest, NoPeerJoinsTwice) {
  PeerState peer;
  EXPECT_DEATH(peer.move_to(Life::kJoined), "SC_ASSERT");
}

}  // namespace
}  // namespace stagecraft::detail
