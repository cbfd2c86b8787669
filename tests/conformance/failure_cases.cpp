// Deadlines, aborts, recovery and ranks that leave.

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include "stagecraft/base/error.h"
#include "tests/conformance/transport_suite.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

const Rank kTwo(2);

TEST_P(TransportSuite, ALateReceiveNamesWhatIsMissingAndMayBeWaitedForAgain) {
  run(2, [&](Transport& transport) {
    if (transport.rank() == kOne) {
      const auto late = transport.post_receive(kZero, values(0, 1, 3, 7));
      EXPECT_ERROR(transport.wait_receive(late, at_once()), TimeoutError,
                   "ms for values of stage 0 for stage 1, microbatch 3, step 7, from rank 0");
      transport.barrier(soon());
      EXPECT_EQ(transport.wait_receive(late, soon()).value.toInt(), 42);
    } else {
      transport.barrier(soon());
      send(transport, kOne, values(0, 1, 3, 7), 42);
    }
  });
}

TEST_P(TransportSuite, LateCollectivesNameWhoIsMissingAndMayBeRepeated) {
  // Who is missing is rank 0's to say, which may have to be woken first.
  const auto shortly = [] { return Deadline::after(std::chrono::milliseconds(300)); };
  run(3, [&](Transport& transport) {
    transport.barrier(soon());
    if (transport.rank() == kOne) {
      EXPECT_ERROR(transport.barrier(shortly()), TimeoutError, "ranks 0 and 2 in barrier");
      EXPECT_ERROR(transport.all_reduce(at::ones({1}), shortly()), TimeoutError,
                   "ranks 0 and 2 in all_reduce");
      EXPECT_ERROR(transport.all_gather(1, shortly()), TimeoutError, "ranks 0 and 2");
      EXPECT_ERROR(transport.broadcast(1, kOne, shortly()), TimeoutError, "ranks 0 and 2");
      EXPECT_ERROR(transport.recover(shortly()), TimeoutError, "ranks 0 and 2 in recover");
      for (const auto rank : {kZero, kTwo}) send(transport, rank, values(1, 0, 0), 1);
    } else {
      receive(transport, kOne, values(1, 0, 0));
    }
    transport.barrier(soon());
    EXPECT_EQ(transport.all_reduce(at::ones({1}), soon()).item<float>(), 3.F);
    EXPECT_EQ(transport.abort_reason(), nullptr) << "a deadline is no abort";
  });
}

TEST_P(TransportSuite, AbortEndsEveryKindOfWait) {
  using Wait = std::function<void(Transport&)>;
  std::vector<std::pair<std::string, Wait>> waits = {
      {"receive",
       [](Transport& t) { t.wait_receive(t.post_receive(kZero, values(0, 1, 0)), soon()); }},
      {"barrier", [](Transport& t) { t.barrier(soon()); }},
      {"broadcast", [](Transport& t) { t.broadcast(1, kOne, soon()); }},
      {"all_reduce", [](Transport& t) { t.all_reduce(at::ones({1}), soon()); }},
      {"all_gather", [](Transport& t) { t.all_gather(1, soon()); }},
  };
  if (!GetParam().buffered) {
    waits.emplace_back(
        "send", [](Transport& t) { t.wait_send(t.post_send(kZero, values(1, 0, 0), 1), soon()); });
  }
  for (const auto& named : waits) {
    SCOPED_TRACE(named.first);
    const auto& wait = named.second;
    run(3, [&](Transport& transport) {
      transport.barrier(soon());
      const auto begin = Deadline::Clock::now();
      if (transport.rank() == kZero) {
        // Long enough for the others to be asleep.
        const auto never = transport.post_receive(kZero, values(9, 9, 9));
        EXPECT_THROW(transport.wait_receive(never, at_once()), TimeoutError);
        transport.abort({kZero, "the disk is full"});
        EXPECT_TRUE(never->is_done());
      } else {
        expect_aborted([&] { wait(transport); }, kZero, "rank 0: the disk is full");
      }
      EXPECT_LT(Deadline::Clock::now() - begin, std::chrono::seconds(5));
    });
  }
}

TEST_P(TransportSuite, TheFirstReasonCountsAndAllThrowsUntilRecovered) {
  run(3, [&](Transport& transport) {
    const auto early = transport.post_send(transport.rank(), values(0, 1, 0), 1);
    const auto there = transport.post_receive(transport.rank(), values(0, 1, 0));
    transport.barrier(soon());
    if (transport.rank() == kTwo) {
      transport.abort({kTwo, "first"});
      transport.abort({kTwo, "second"});
    } else {
      expect_aborted([&] { transport.barrier(soon()); }, kTwo, "first");
      transport.abort({transport.rank(), "third"});
    }
    ASSERT_NE(transport.abort_reason(), nullptr);
    EXPECT_EQ(transport.abort_reason()->message, "first");
    EXPECT_EQ(transport.abort_reason()->rank, kTwo);
    const std::vector<std::function<void()>> calls = {
        [&] { transport.post_send(kZero, values(0, 1, 1), 1); },
        [&] { transport.post_receive(kZero, values(0, 1, 1)); },
        [&] { transport.wait_send(early, soon()); },
        [&] { transport.wait_receive(there, soon()); },
        [&] { transport.barrier(soon()); },
        [&] { transport.broadcast(1, kZero, soon()); },
        [&] { transport.all_reduce(at::ones({1}), soon()); },
        [&] { transport.all_gather(1, soon()); },
    };
    for (const auto& call : calls) expect_aborted(call, kTwo, "rank 2: first");
    transport.recover(soon());
    EXPECT_EQ(transport.abort_reason(), nullptr);
    transport.barrier(soon());
  });
}

TEST_P(TransportSuite, NothingStaleIsLeftAfterRecovery) {
  run(3, [&](Transport& transport) {
    const auto me = transport.rank().value();
    const Rank next((me + 1) % 3);
    const Rank previous((me + 2) % 3);
    for (int32_t round = 0; round < 20; ++round) {
      // Sent, and in half of the rounds the receive was posted, but never taken.
      transport.post_send(next, values(0, 1, 0), -1);
      const auto large = [](int32_t number) { return at::full({300'000}, double(number)); };
      if (round % 4 == 1) transport.post_send(next, values(0, 1, 1), large(-1));
      PendingPtr stale;
      if (round % 2 == 0) stale = transport.post_receive(previous, values(0, 1, 0));
      transport.barrier(soon());
      if (round % 3 == me) transport.abort({transport.rank(), "round " + std::to_string(round)});
      transport.recover(soon());
      EXPECT_EQ(transport.abort_reason(), nullptr);
      if (stale) {
        EXPECT_TRUE(stale->is_done());
        EXPECT_ERROR(transport.wait_receive(stale, soon()), ArgumentError,
                     "before the world recovered");
      }
      const auto fresh = transport.post_receive(previous, values(0, 1, 0));
      if (round == 0) {
        EXPECT_ERROR(transport.wait_receive(fresh, at_once()), TimeoutError, "values of stage 0");
        transport.barrier(soon());
      }
      const auto sent = transport.post_send(next, values(0, 1, 0), round);
      EXPECT_EQ(transport.wait_receive(fresh, soon()).value.toInt(), round);
      transport.wait_send(sent, soon());
      if (round % 4 < 2) {
        const auto also = transport.post_send(next, values(0, 1, 1), large(round));
        EXPECT_TRUE(
            at::equal(receive(transport, previous, values(0, 1, 1)).toTensor(), large(round)));
        transport.wait_send(also, soon());
      }
      // No rank recovers again while a different rank still waits.
      transport.barrier(soon());
    }
  });
}

TEST_P(TransportSuite, WhatARankThrowsIsThrownToTheCaller) {
  if (GetParam().has_ranks && !GetParam().has_ranks(3)) GTEST_SKIP() << "needs 3 ranks";
  EXPECT_ERROR(run(3,
                   [&](Transport& transport) {
                     if (transport.rank() == kOne) throw std::out_of_range("row 12");
                     const auto never = transport.post_receive(kOne, values(0, 1, 0));
                     transport.wait_receive(never, soon());
                   }),
               std::out_of_range, "row 12");
}

TEST_P(TransportSuite, LeavingWhileOthersWaitFreesThem) {
  if (!GetParam().run_owning) GTEST_SKIP() << "an end cannot be destroyed alone";
  GetParam().run_owning(3, [&](std::unique_ptr<Transport>& transport) {
    if (transport->rank() == kTwo) {
      const auto never = transport->post_receive(kTwo, values(9, 9, 9));
      // Long enough for the others to be asleep.
      EXPECT_THROW(transport->wait_receive(never, at_once()), TimeoutError);
      transport.reset();
    } else if (transport->rank() == kOne) {
      const auto never = transport->post_receive(kTwo, values(0, 1, 0));
      expect_aborted([&] { transport->wait_receive(never, soon()); }, kTwo, "rank 2 left while");
      ASSERT_NE(transport->abort_reason(), nullptr);
      EXPECT_EQ(transport->abort_reason()->rank, kTwo);
    } else {
      const auto never = transport->post_receive(kOne, values(0, 1, 0));
      // Freed by the abort, although it does not wait for the rank that left.
      expect_aborted([&] { transport->wait_receive(never, soon()); }, kTwo, "rank 2 left while");
    }
  });
}

// The wait for the send ends before the deadline, whether the value was already sent or not.
TEST_P(TransportSuite, ALargeSendToARankThatLeavesIsSoonOver) {
  if (!GetParam().run_owning) GTEST_SKIP() << "an end cannot be destroyed alone";
  GetParam().run_owning(2, [&](std::unique_ptr<Transport>& transport) {
    if (transport->rank() == kOne) {
      transport->barrier(soon());
      transport.reset();
      return;
    }
    const auto sent = transport->post_send(kOne, values(0, 1, 0), at::ones({2'000'000}));
    transport->barrier(soon());
    try {
      transport->wait_send(sent, soon());
    } catch (const PeerError& error) {
      EXPECT_EQ(error.peer(), kOne) << error.what();
    }
  });
}

TEST_P(TransportSuite, LeavingWithNothingToDoIsSilent) {
  if (!GetParam().run_owning) GTEST_SKIP() << "an end cannot be destroyed alone";
  GetParam().run_owning(2, [&](std::unique_ptr<Transport>& transport) {
    if (transport->rank() == kOne) {
      const auto sent = transport->post_send(kZero, values(0, 1, 0), 5);
      transport->barrier(soon());
      transport->wait_send(sent, soon());
      transport.reset();
    } else {
      const auto last = transport->post_receive(kOne, values(0, 1, 0));
      transport->barrier(soon());
      EXPECT_EQ(transport->wait_receive(last, soon()).value.toInt(), 5);
      const auto begin = Deadline::Clock::now();
      EXPECT_THROW(transport->wait_receive(transport->post_receive(kOne, values(0, 1, 1)), soon()),
                   PeerError);
      EXPECT_THROW(transport->barrier(soon()), PeerError);
      EXPECT_THROW(transport->recover(soon()), PeerError);
      EXPECT_LT(Deadline::Clock::now() - begin, std::chrono::seconds(5));
    }
  });
}

}  // namespace
}  // namespace stagecraft
