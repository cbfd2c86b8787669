#include "stagecraft/transport/core/exchange.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "tests/support/expect_error.h"
#include "tests/transport/run_ranks.h"

namespace stagecraft {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using IntExchange = detail::Exchange<int>;

const Rank kZero(0);
const Rank kOne(1);
const Rank kTwo(2);

TEST(Exchange, CarriesAPayloadWhicheverEndComesFirst) {
  IntExchange exchange(2);
  const auto early = exchange.post_receive(kOne, kZero, values_of(0));
  EXPECT_FALSE(early->is_done());
  const auto send = exchange.post_send(kZero, kOne, values_of(0), 10);
  EXPECT_TRUE(send->is_done());
  EXPECT_TRUE(early->is_done());
  exchange.post_send(kZero, kOne, values_of(1), 11);
  const auto late = exchange.post_receive(kOne, kZero, values_of(1));
  EXPECT_TRUE(late->is_done());
  EXPECT_EQ(exchange.wait_receive(kOne, late, soon()).payload, 11);
  EXPECT_EQ(exchange.wait_receive(kOne, early, soon()).payload, 10);
  exchange.wait_send(kZero, send, soon());
}

TEST(Exchange, WakesWhoSleeps) {
  IntExchange exchange(2, {.zero_buffering = true, .spin = {}});
  const auto begin = Deadline::Clock::now();
  const auto receive = exchange.post_receive(kOne, kZero, values_of(0));
  auto receiver = std::async(std::launch::async,
                             [&] { return exchange.wait_receive(kOne, receive, soon()).payload; });
  EXPECT_EQ(receiver.wait_for(milliseconds(50)), std::future_status::timeout);
  exchange.post_send(kZero, kOne, values_of(0), 7);
  EXPECT_EQ(receiver.get(), 7);

  const auto send = exchange.post_send(kZero, kOne, values_of(1), 8);
  auto sender = std::async(std::launch::async, [&] { exchange.wait_send(kZero, send, soon()); });
  EXPECT_EQ(sender.wait_for(milliseconds(50)), std::future_status::timeout);
  exchange.post_receive(kOne, kZero, values_of(1));
  sender.get();
  EXPECT_LT(Deadline::Clock::now() - begin, seconds(5)) << "slept until the deadline";
}

TEST(Exchange, SaysWhenAPayloadWasSent) {
  IntExchange exchange(2);
  const auto before = Deadline::Clock::now();
  exchange.post_send(kZero, kOne, values_of(0), 1);
  const auto after = Deadline::Clock::now();
  const auto receive = exchange.post_receive(kOne, kZero, values_of(0));
  const auto sent = exchange.wait_receive(kOne, receive, soon()).sent;
  EXPECT_LE(before, sent);
  EXPECT_LE(sent, after);
}

TEST(Exchange, TellsSendersApart) {
  IntExchange exchange(3);
  exchange.post_send(kZero, kTwo, values_of(0), 100);
  exchange.post_send(kOne, kTwo, values_of(0), 101);
  const auto from_one = exchange.post_receive(kTwo, kOne, values_of(0));
  EXPECT_EQ(exchange.wait_receive(kTwo, from_one, soon()).payload, 101);
}

TEST(Exchange, RefusesWhatCannotBeMeant) {
  IntExchange exchange(2);
  EXPECT_ERROR(IntExchange(0), ArgumentError, "at least one rank, got 0");
  EXPECT_ERROR(exchange.post_send(kZero, kTwo, values_of(0), 1), ArgumentError,
               "post_send: there is no rank 2 among 2 ranks");
  EXPECT_ERROR(exchange.post_receive(kZero, Rank(-1), values_of(0)), ArgumentError,
               "post_receive: there is no rank -1");
  exchange.post_send(kZero, kOne, values_of(0), 1);
  EXPECT_ERROR(exchange.post_send(kZero, kOne, values_of(0), 2), ArgumentError,
               "rank 0 sent to rank 1 twice, before the first value was received: values of stage "
               "0 for stage "
               "1, microbatch 0, step 0");
  const auto receive = exchange.post_receive(kOne, kZero, values_of(0));
  EXPECT_ERROR(exchange.post_receive(kOne, kZero, values_of(0)), ArgumentError,
               "rank 1 posted a receive twice, before the first was waited for: values of stage 0");
  EXPECT_ERROR(exchange.wait_receive(kZero, receive, soon()), ArgumentError, "posted by rank 1");
  EXPECT_ERROR(exchange.wait_receive(kOne, nullptr, soon()), ArgumentError, "there is no receive");
  EXPECT_ERROR(exchange.wait_send(kOne, receive, soon()), ArgumentError, "not a send");
  IntExchange other(2);
  EXPECT_ERROR(other.wait_receive(kOne, receive, soon()), ArgumentError, "a different world");
  EXPECT_EQ(exchange.wait_receive(kOne, receive, soon()).payload, 1);
  EXPECT_ERROR(exchange.wait_receive(kOne, receive, soon()), ArgumentError, "already waited for");

  // Once taken, the identity is free again.
  exchange.post_send(kZero, kOne, values_of(0), 3);
  const auto again = exchange.post_receive(kOne, kZero, values_of(0));
  EXPECT_EQ(exchange.wait_receive(kOne, again, soon()).payload, 3);
}

TEST(Exchange, TimeoutNamesWhatIsMissingAndTheWaitMayBeRepeated) {
  IntExchange exchange(2);
  const auto receive = exchange.post_receive(kOne, kZero, values_of(3, 7));
  EXPECT_ERROR(exchange.wait_receive(kOne, receive, at_once()), TimeoutError,
               "ms for values of stage 0 for stage 1, microbatch 3, step 7, from rank 0");
  exchange.post_send(kZero, kOne, values_of(3, 7), 5);
  EXPECT_EQ(exchange.wait_receive(kOne, receive, soon()).payload, 5);
}

TEST(Exchange, WaitsSayHowLong) {
  EXPECT_EQ(detail::describe_wait(milliseconds(20)), "20 ms");
  EXPECT_EQ(detail::describe_wait(seconds(30)), "30.0 s");
}

TEST(Exchange, WithoutBufferingASendIsDoneWhenItsReceiveIsPosted) {
  IntExchange exchange(2, {.zero_buffering = true, .spin = {}});
  const auto send = exchange.post_send(kZero, kOne, values_of(0), 1);
  EXPECT_FALSE(send->is_done());
  EXPECT_ERROR(exchange.wait_send(kZero, send, at_once()), TimeoutError,
               "ms for rank 1 to post the receive of values of stage 0 for stage 1, microbatch 0");
  auto waiter = std::async(std::launch::async, [&] { exchange.wait_send(kZero, send, soon()); });
  const auto receive = exchange.post_receive(kOne, kZero, values_of(0));
  waiter.get();
  EXPECT_TRUE(send->is_done());
  EXPECT_EQ(exchange.wait_receive(kOne, receive, soon()).payload, 1);
  exchange.wait_send(kZero, send, soon());
}

TEST(Exchange, GathersFromAllRanksAgainAndAgain) {
  for (const auto spin : {microseconds(0), microseconds(20)}) {
    IntExchange exchange(4, {.zero_buffering = false, .spin = spin});
    run_ranks(4, [&](Rank rank) {
      for (int round = 0; round < 200; ++round) {
        const auto all = exchange.gather(rank, "all_gather", 10 * round + rank.value(), soon());
        EXPECT_THAT(
            *all, testing::ElementsAre(10 * round, 10 * round + 1, 10 * round + 2, 10 * round + 3));
      }
    });
  }
}

TEST(Exchange, AMissedMeetingNamesWhoIsMissingAndMayBeRepeated) {
  IntExchange exchange(3);
  EXPECT_ERROR(exchange.gather(kOne, "barrier", 1, at_once()), TimeoutError,
               "ms for ranks 0 and 2 in barrier");
  run_ranks(3, [&](Rank rank) {
    EXPECT_THAT(*exchange.gather(rank, "barrier", rank.value(), soon()),
                testing::ElementsAre(0, 1, 2));
  });
}

TEST(Exchange, DifferentCollectivesAtOnceAreAnErrorOnAll) {
  IntExchange exchange(3);
  run_ranks(3, [&](Rank rank) {
    const auto* const call = rank == kOne ? "all_reduce" : "barrier";
    EXPECT_ERROR(exchange.gather(rank, call, 0, soon()), ArgumentError,
                 "ranks 0 and 2 called barrier, rank 1 called all_reduce");
    EXPECT_NO_THROW(exchange.gather(rank, "barrier", 0, soon()));
  });
}

TEST(Exchange, AbortWakesEveryKindOfWaitWithTheFirstReason) {
  for (const auto spin : {Deadline::Clock::duration(0), Deadline::Clock::duration(seconds(5))}) {
    IntExchange exchange(4, {.zero_buffering = true, .spin = spin});
    EXPECT_EQ(exchange.reason(), nullptr);
    const auto expect_aborted = [](const std::function<void()>& wait) {
      try {
        wait();
        ADD_FAILURE() << "did not throw";
      } catch (const PeerError& error) {
        EXPECT_STREQ(error.what(), "rank 3: out of luck");
        EXPECT_EQ(error.peer(), Rank(3));
        EXPECT_THROW(std::rethrow_exception(error.cause()), std::out_of_range);
      }
    };
    const auto begin = Deadline::Clock::now();
    run_ranks(4, [&](Rank rank) {
      PendingPtr pending;
      if (rank == kZero) pending = exchange.post_receive(kZero, kOne, values_of(0));
      if (rank == kOne) pending = exchange.post_send(kOne, kZero, values_of(1), 0);
      exchange.gather(rank, "barrier", 0, soon());
      if (rank == kZero) {
        expect_aborted([&] { exchange.wait_receive(kZero, pending, soon()); });
        EXPECT_TRUE(pending->is_done());
      } else if (rank == kOne) {
        expect_aborted([&] { exchange.wait_send(kOne, pending, soon()); });
        EXPECT_TRUE(pending->is_done());
      } else if (rank == kTwo) {
        expect_aborted([&] { exchange.gather(kTwo, "barrier", 0, soon()); });
      } else {
        // Long enough for the others to be asleep.
        const auto never = exchange.post_receive(rank, rank, values_of(9));
        EXPECT_THROW(exchange.wait_receive(rank, never, at_once()), TimeoutError);
        exchange.abort({rank, "out of luck", std::make_exception_ptr(std::out_of_range("row"))});
        exchange.abort({kZero, "too late"});
      }
      expect_aborted([&] { exchange.post_send(rank, kZero, values_of(2), 0); });
      expect_aborted([&] { exchange.post_receive(rank, kZero, values_of(3)); });
      expect_aborted([&] { exchange.gather(rank, "barrier", 0, soon()); });
      EXPECT_EQ(exchange.reason()->message, "out of luck");
    });
    EXPECT_LT(Deadline::Clock::now() - begin, seconds(5));
  }
}

TEST(Exchange, AbortLetsGoOfWhatWasNotTaken) {
  detail::Exchange<std::shared_ptr<int>> exchange(2);
  auto payload = std::make_shared<int>(7);
  const std::weak_ptr<int> watched = payload;
  exchange.post_send(kZero, kOne, values_of(0), std::move(payload));
  const auto receive = exchange.post_receive(kOne, kZero, values_of(0));
  exchange.abort({kZero, "failed"});
  EXPECT_TRUE(watched.expired());
  EXPECT_ERROR(exchange.wait_receive(kOne, receive, soon()), PeerError, "failed");
}

TEST(Exchange, RecoverMakesTheWorldAsNew) {
  IntExchange exchange(2);
  const auto stale = exchange.post_receive(kOne, kZero, values_of(0));
  exchange.post_send(kZero, kOne, values_of(1), 1);
  exchange.abort({kZero, "failed"});
  EXPECT_ERROR(exchange.recover(kOne, at_once()), TimeoutError, "ms for rank 0 in recover");
  EXPECT_NE(exchange.reason(), nullptr);
  run_ranks(2, [&](Rank rank) { exchange.recover(rank, soon()); });
  EXPECT_EQ(exchange.reason(), nullptr);
  EXPECT_TRUE(stale->is_done());
  EXPECT_ERROR(exchange.wait_receive(kOne, stale, soon()), ArgumentError,
               "was posted before the world recovered");
  const auto forgotten = exchange.post_receive(kOne, kZero, values_of(1));
  EXPECT_ERROR(exchange.wait_receive(kOne, forgotten, at_once()), TimeoutError, "microbatch 1");
  exchange.post_send(kZero, kOne, values_of(0), 9);
  const auto fresh = exchange.post_receive(kOne, kZero, values_of(0));
  EXPECT_EQ(exchange.wait_receive(kOne, fresh, soon()).payload, 9);
  exchange.abort({kOne, "failed again"});
  ASSERT_NE(exchange.reason(), nullptr);
  EXPECT_EQ(exchange.reason()->message, "failed again");
}

TEST(Exchange, LeavingInSilenceLeavesWhatWasSent) {
  IntExchange exchange(2);
  exchange.post_send(kZero, kOne, values_of(0), 1);
  exchange.leave(kZero);
  EXPECT_EQ(exchange.reason(), nullptr);
  const auto receive = exchange.post_receive(kOne, kZero, values_of(0));
  EXPECT_EQ(exchange.wait_receive(kOne, receive, soon()).payload, 1);
  const auto never = exchange.post_receive(kOne, kZero, values_of(1));
  EXPECT_TRUE(never->is_done());
  EXPECT_ERROR(exchange.wait_receive(kOne, never, soon()), PeerError,
               "rank 0 has left, so rank 1 cannot wait for values of stage 0");
  EXPECT_ERROR(exchange.post_send(kOne, kZero, values_of(0), 1), PeerError, "rank 0 has left");
  EXPECT_ERROR(exchange.gather(kOne, "barrier", 1, soon()), PeerError,
               "cannot wait for it in barrier");
  EXPECT_ERROR(exchange.recover(kOne, soon()), PeerError, "cannot wait for it in recover");
  EXPECT_EQ(exchange.reason(), nullptr);
}

TEST(Exchange, LeavingWhileOthersWaitAbortsTheWorld) {
  const auto wait_and_leave = [](IntExchange& exchange, const std::function<void()>& wait,
                                 const std::string& text) {
    auto waiter = std::async(std::launch::async, [&] {
      EXPECT_ERROR(wait(), PeerError, text);
      EXPECT_EQ(exchange.reason()->rank, kTwo);
      EXPECT_THAT(exchange.reason()->message, testing::HasSubstr(text));
    });
    // Long enough for it to be asleep.
    EXPECT_EQ(waiter.wait_for(milliseconds(50)), std::future_status::timeout);
    exchange.leave(kTwo);
    EXPECT_EQ(waiter.wait_for(seconds(5)), std::future_status::ready) << "slept on";
    waiter.get();
  };
  {
    IntExchange exchange(3);
    const auto receive = exchange.post_receive(kZero, kTwo, values_of(0));
    wait_and_leave(
        exchange, [&] { exchange.wait_receive(kZero, receive, soon()); },
        "rank 2 left while rank 0 waited for values of stage 0 for stage 1");
  }
  {
    IntExchange exchange(3, {.zero_buffering = true, .spin = {}});
    const auto send = exchange.post_send(kZero, kTwo, values_of(0), 1);
    wait_and_leave(
        exchange, [&] { exchange.wait_send(kZero, send, soon()); },
        "rank 2 left while rank 0 waited for rank 2 to post the receive of values");
  }
  {
    IntExchange exchange(3);
    wait_and_leave(
        exchange, [&] { exchange.gather(kZero, "barrier", 1, soon()); },
        "rank 2 left while rank 0 waited for it in barrier");
  }
  {
    IntExchange exchange(3);
    wait_and_leave(
        exchange, [&] { exchange.recover(kZero, soon()); },
        "rank 2 left while rank 0 waited for it in recover");
  }
}

TEST(Exchange, WithoutBufferingWhatWasNotHandedOverGoesWithTheSender) {
  IntExchange exchange(2, {.zero_buffering = true, .spin = {}});
  const auto handed_over = exchange.post_receive(kOne, kZero, values_of(0));
  exchange.post_send(kZero, kOne, values_of(0), 1);
  exchange.post_send(kZero, kOne, values_of(1), 2);
  exchange.leave(kZero);
  EXPECT_EQ(exchange.wait_receive(kOne, handed_over, soon()).payload, 1);
  const auto lost = exchange.post_receive(kOne, kZero, values_of(1));
  EXPECT_ERROR(exchange.wait_receive(kOne, lost, soon()), PeerError, "rank 0 has left");
}

// A payload that calls the exchange when it dies: under a lock of the exchange that would never
// return.
class Calling {
 public:
  Calling() = default;
  explicit Calling(std::function<void()> at_death) : at_death_(std::move(at_death)) {}
  Calling(Calling&& other) noexcept : at_death_(std::exchange(other.at_death_, nullptr)) {}
  Calling& operator=(Calling&& other) noexcept {
    std::swap(at_death_, other.at_death_);
    return *this;
  }
  ~Calling() {
    if (at_death_) at_death_();
  }

 private:
  std::function<void()> at_death_;
};

TEST(Exchange, DestroysPayloadsOutsideItsLocks) {
  const auto destroyed_within_limit = [](bool zero_buffering, const auto& make_and_drop) {
    auto done = std::make_shared<std::promise<void>>();
    auto future = done->get_future();
    // Detached, so that a deadlock is a failure and not an end that never comes.
    std::thread([done, zero_buffering, make_and_drop] {
      detail::Exchange<Calling> exchange(2, {.zero_buffering = zero_buffering, .spin = {}});
      int calls = 0;
      int expected = make_and_drop(exchange, [&exchange, &calls] {
        ++calls;
        for (const auto rank : {kZero, kOne}) {
          try {
            static_cast<void>(exchange.post_receive(rank, rank, values_of(1000 + calls)));
            exchange.gather(rank, "barrier", Calling(), Deadline::after(milliseconds(1)));
          } catch (const Error&) {
          }
          try {
            exchange.recover(rank, Deadline::after(milliseconds(1)));
          } catch (const Error&) {
          }
        }
      });
      EXPECT_EQ(calls, expected);
      done->set_value();
    }).detach();
    ASSERT_EQ(future.wait_for(seconds(20)), std::future_status::ready);
  };
  using Callings = detail::Exchange<Calling>;
  using Call = std::function<void()>;
  destroyed_within_limit(false, [](Callings& exchange, const Call& call) {
    exchange.post_send(kZero, kOne, values_of(0), Calling(call));
    EXPECT_THROW(exchange.post_send(kZero, kOne, values_of(0), Calling(call)), ArgumentError);
    exchange.abort({kZero, "failed"});
    EXPECT_THROW(exchange.post_send(kZero, kOne, values_of(1), Calling(call)), PeerError);
    run_ranks(2, [&](Rank rank) { exchange.recover(rank, soon()); });
    exchange.post_send(kZero, kOne, values_of(2), Calling(call));
    run_ranks(2, [&](Rank rank) { exchange.recover(rank, soon()); });
    return 4;
  });
  destroyed_within_limit(true, [](Callings& exchange, const Call& call) {
    exchange.post_send(kZero, kOne, values_of(0), Calling(call));
    exchange.leave(kZero);
    return 1;
  });
  destroyed_within_limit(false, [](Callings& exchange, const Call& call) {
    EXPECT_THROW(exchange.gather(kZero, "barrier", Calling(call), at_once()), TimeoutError);
    return 1;
  });
}

}  // namespace
}  // namespace stagecraft
