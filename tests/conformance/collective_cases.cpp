// Collectives of a transport.

#include <cmath>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include "stagecraft/base/error.h"
#include "stagecraft/tree/tree.h"
#include "tests/conformance/transport_suite.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

// Numbers whose sum depends on the order.
at::Tensor numbers_of(int32_t rank) {
  return at::arange(1000, at::kFloat).mul(rank + 1).sin().mul(std::pow(10.F, rank % 3));
}

TEST_P(TransportSuite, AllReduceAddsInTheOrderOfTheRanks) {
  for (int32_t ranks = 1; ranks <= 5; ++ranks) {
    run(ranks, [&](Transport& transport) {
      auto expected = numbers_of(0);
      for (int32_t rank = 1; rank < ranks; ++rank) expected.add_(numbers_of(rank));
      auto mine = numbers_of(transport.rank().value()).requires_grad_();
      const auto sum = transport.all_reduce(mine, soon());
      EXPECT_TRUE(at::equal(sum, expected)) << "not the same bits";
      EXPECT_FALSE(sum.requires_grad());
      EXPECT_FALSE(sum.is_alias_of(mine)) << "not a new tensor";
    });
  }
}

TEST_P(TransportSuite, AllReduceIsDoneWithItsArgumentWhenItReturns) {
  run(3, [&](Transport& transport) {
    auto mine = at::full({10000}, transport.rank().value() + 1, at::kLong);
    for (int round = 0; round < 50; ++round) {
      const auto sum = transport.all_reduce(mine, soon());
      mine.fill_(-1);
      ASSERT_EQ(sum.min().item<int64_t>(), 6) << "round " << round;
      ASSERT_EQ(sum.max().item<int64_t>(), 6) << "round " << round;
      mine.fill_(transport.rank().value() + 1);
    }
  });
}

TEST_P(TransportSuite, AllReduceOfDifferentTensorsIsAnErrorOnAll) {
  run(3, [&](Transport& transport) {
    const bool odd = transport.rank() == kOne;
    EXPECT_ERROR(transport.all_reduce(at::ones({odd ? 3 : 2}), soon()), MetadataError,
                 "rank 0 passed Float of shape [2], rank 1 passed Float of shape [3]");
    EXPECT_ERROR(transport.all_reduce(at::ones({2}, odd ? at::kLong : at::kFloat), soon()),
                 MetadataError, "rank 1 passed Long of shape [2]");
    transport.barrier(soon());
  });
}

TEST_P(TransportSuite, BroadcastGivesAllTheRootsValue) {
  for (int32_t ranks = 1; ranks <= 5; ++ranks) {
    run(ranks, [&](Transport& transport) {
      for (Rank root(0); root.value() < ranks; ++root) {
        const c10::IValue value =
            tree::dict({{"root", root.value()}, {"tensor", at::full({2}, root.value())}});
        const c10::IValue passed =
            transport.rank() == root ? value : c10::IValue("what others pass is ignored");
        EXPECT_TRUE(tree::equal(transport.broadcast(passed, root, soon()), value));
      }
    });
  }
}

TEST_P(TransportSuite, AllGatherGivesAllWhatEachPassed) {
  for (int32_t ranks = 1; ranks <= 5; ++ranks) {
    run(ranks, [&](Transport& transport) {
      const auto me = transport.rank().value();
      // Of different kinds and sizes.
      const auto value_of = [](int32_t rank) {
        return rank == 1 ? c10::IValue("one") : c10::IValue(tree::tuple({rank, at::ones({rank})}));
      };
      const auto all = transport.all_gather(value_of(me), soon());
      ASSERT_EQ(all.size(), static_cast<std::size_t>(ranks));
      for (int32_t rank = 0; rank < ranks; ++rank) {
        EXPECT_TRUE(tree::equal(all[static_cast<std::size_t>(rank)], value_of(rank)));
      }
    });
  }
}

TEST_P(TransportSuite, CollectivesFollowEachOtherWhileTransfersAreInFlight) {
  run(4, [&](Transport& transport) {
    const auto me = transport.rank().value();
    const Rank next((me + 1) % 4);
    const Rank previous((me + 3) % 4);
    std::vector<PendingPtr> sends;
    std::vector<PendingPtr> receives;
    for (int32_t i = 0; i < 50; ++i) {
      sends.push_back(transport.post_send(next, values(me, next.value(), i), 100 * me + i));
      if (i % 3 == 0) transport.barrier(soon());
      if (i % 3 == 1) {
        EXPECT_EQ(transport.all_reduce(at::full({1}, me + i), soon()).item<float>(),
                  static_cast<float>(6 + 4 * i));
      }
      if (i % 3 == 2) {
        EXPECT_EQ(transport.broadcast(me, Rank(i % 4), soon()).toInt(), i % 4);
      }
      receives.push_back(transport.post_receive(previous, values(previous.value(), me, i)));
    }
    for (int32_t i = 49; i >= 0; --i) {
      const auto& receive = receives[static_cast<std::size_t>(i)];
      EXPECT_EQ(transport.wait_receive(receive, soon()).value.toInt(), 100 * previous.value() + i);
    }
    for (const auto& sent : sends) transport.wait_send(sent, soon());
  });
}

TEST_P(TransportSuite, DifferentCollectivesAtOnceAreAnErrorOnAll) {
  run(3, [&](Transport& transport) {
    EXPECT_ERROR(transport.rank() == kOne ? static_cast<void>(transport.all_gather(1, soon()))
                                          : transport.barrier(soon()),
                 ArgumentError, "ranks 0 and 2 called barrier, rank 1 called all_gather");
    EXPECT_ERROR(transport.broadcast(1, transport.rank() == kOne ? kOne : kZero, soon()),
                 ArgumentError, "rank 1 called broadcast from rank 1");
    transport.barrier(soon());
  });
}

}  // namespace
}  // namespace stagecraft
