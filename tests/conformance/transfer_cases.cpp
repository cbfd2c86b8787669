// What a transport carries, and in which orders.

#include <algorithm>
#include <complex>
#include <random>
#include <vector>

#include <gmock/gmock.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include "stagecraft/base/error.h"
#include "stagecraft/tree/describe.h"
#include "stagecraft/tree/tree.h"
#include "tests/conformance/transport_suite.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

TEST_P(TransportSuite, KnowsItsPlace) {
  for (int32_t ranks = 1; ranks <= 5; ++ranks) {
    run(ranks, [&](Transport& transport) {
      EXPECT_EQ(transport.num_ranks(), ranks);
      EXPECT_GE(transport.rank().value(), 0);
      EXPECT_LT(transport.rank().value(), ranks);
      EXPECT_EQ(transport.abort_reason(), nullptr);
    });
  }
}

TEST_P(TransportSuite, EveryRankReachesEveryRank) {
  for (int32_t ranks = 1; ranks <= 5; ++ranks) {
    run(ranks, [&](Transport& transport) {
      const auto me = transport.rank().value();
      std::vector<PendingPtr> receives;
      std::vector<PendingPtr> sends;
      for (int32_t other = 0; other < ranks; ++other) {
        receives.push_back(transport.post_receive(Rank(other), values(other, me, 0)));
        sends.push_back(transport.post_send(Rank(other), values(me, other, 0),
                                            at::full({me + 1}, 10 * me + other)));
      }
      for (int32_t other = 0; other < ranks; ++other) {
        const auto received =
            transport.wait_receive(receives[static_cast<std::size_t>(other)], soon());
        EXPECT_TRUE(tree::equal(received.value, at::full({other + 1}, 10 * other + me)));
      }
      for (const auto& pending : sends) transport.wait_send(pending, soon());
    });
  }
}

// Both ends shuffle their posts, and the receiver its waits.
TEST_P(TransportSuite, OrderIsFree) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    run(3, [&](Transport& transport) {
      const auto me = transport.rank().value();
      std::mt19937 random(seed * 3 + static_cast<unsigned>(me));
      struct Step {
        bool is_send = false;
        int32_t peer = 0;
        int32_t microbatch = 0;
      };
      std::vector<Step> steps;
      for (int32_t peer = 0; peer < 3; ++peer) {
        for (int32_t microbatch = 0; microbatch < 20; ++microbatch) {
          steps.push_back({true, peer, microbatch});
          steps.push_back({false, peer, microbatch});
        }
      }
      std::shuffle(steps.begin(), steps.end(), random);
      std::vector<std::pair<PendingPtr, Step>> posted;
      for (const auto& step : steps) {
        auto pending =
            step.is_send
                ? transport.post_send(Rank(step.peer), values(me, step.peer, step.microbatch),
                                      1000 * me + step.microbatch)
                : transport.post_receive(Rank(step.peer), values(step.peer, me, step.microbatch));
        posted.emplace_back(std::move(pending), step);
      }
      std::shuffle(posted.begin(), posted.end(), random);
      for (const auto& [pending, step] : posted) {
        if (step.is_send) {
          transport.wait_send(pending, soon());
        } else {
          EXPECT_EQ(transport.wait_receive(pending, soon()).value.toInt(),
                    1000 * step.peer + step.microbatch);
        }
        EXPECT_TRUE(pending->is_done());
      }
    });
  }
}

TEST_P(TransportSuite, ThousandsMayBeInFlight) {
  constexpr int32_t kCount = 4000;
  run(2, [&](Transport& transport) {
    const Rank other(1 - transport.rank().value());
    const auto me = transport.rank().value();
    std::vector<PendingPtr> pending;
    for (int32_t i = 0; i < kCount; ++i) {
      pending.push_back(transport.post_send(other, values(me, 1 - me, i), at::full({2}, i)));
    }
    for (int32_t i = kCount - 1; i >= 0; --i) {
      pending.push_back(transport.post_receive(other, values(1 - me, me, i)));
    }
    for (int32_t i = 0; i < kCount; ++i) {
      const auto& receive = pending[static_cast<std::size_t>(2 * kCount - 1 - i)];
      const auto value = transport.wait_receive(receive, soon()).value.toTensor();
      ASSERT_EQ(value[1].item<int64_t>(), i);
    }
    for (int32_t i = 0; i < kCount; ++i) {
      transport.wait_send(pending[static_cast<std::size_t>(i)], soon());
    }
  });
}

std::vector<c10::IValue> values_of_every_kind() {
  const auto grid = at::arange(24, at::kFloat).view({2, 3, 4});
  return {
      c10::IValue(),
      7,
      -2.5,
      true,
      "a text",
      "",
      c10::complex<double>(1.5, -2),
      at::ones({3, 2}),
      at::arange(5),
      at::arange(4).eq(2),
      at::full({}, 3.25),
      at::empty({0}),
      at::empty({2, 0, 3}, at::kLong),
      at::ones({2}, at::kComplexFloat),
      at::ones({2}, at::kBFloat16),
      at::ones({2}, at::kHalf),
      grid.transpose(0, 2),
      grid.slice(2, 1, 4, 2),
      grid.select(1, 1),
      at::full({1}, 2.0).expand({3, 4}),
      at::ones({1, 3, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast),
      tree::tuple({}),
      tree::list({}),
      tree::dict({}),
      tree::tuple({at::ones({2}), tree::list({1, 2, 3}),
                   tree::dict({{"mask", at::arange(3).eq(1)},
                               {"none", c10::IValue()},
                               {"deep", tree::tuple({tree::list({tree::tuple({4.5, "x"})})})}})}),
      tree::list({at::ones({2}), at::ones({3})}),
      c10::List<int64_t>({1, 2, 3}),
      c10::List<at::Tensor>({at::ones({1})}),
  };
}

void expect_same(const c10::IValue& got, const c10::IValue& sent) {
  EXPECT_TRUE(tree::equal(got, sent)) << "got " << describe(got) << ", sent " << describe(sent);
  const auto got_leaves = tree::leaves(got);
  const auto sent_leaves = tree::leaves(sent);
  ASSERT_EQ(got_leaves.size(), sent_leaves.size());
  for (std::size_t i = 0; i < got_leaves.size(); ++i) {
    if (!sent_leaves[i].isTensor()) continue;
    ASSERT_TRUE(got_leaves[i].isTensor());
    const auto& a = got_leaves[i].toTensor();
    const auto& b = sent_leaves[i].toTensor();
    EXPECT_EQ(a.strides(), b.strides());
    EXPECT_EQ(a.requires_grad(), b.requires_grad());
    EXPECT_EQ(a.device(), b.device());
    EXPECT_TRUE(a.is_leaf());
  }
}

TEST_P(TransportSuite, CarriesValuesOfEveryKind) {
  run(2, [&](Transport& transport) {
    const auto all = values_of_every_kind();
    for (std::size_t i = 0; i < all.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "value " << i);
      const auto id = values(0, 1, static_cast<int32_t>(i));
      if (transport.rank() == kZero) {
        send(transport, kOne, id, all[i]);
      } else {
        expect_same(receive(transport, kZero, id), all[i]);
      }
    }
  });
}

TEST_P(TransportSuite, KeepsRequiresGradAndRefusesHistory) {
  run(2, [&](Transport& transport) {
    const auto with_grad = at::ones({2, 3}).requires_grad_();
    const c10::IValue sent = tree::tuple({with_grad, at::ones({2})});
    if (transport.rank() == kZero) {
      EXPECT_ERROR(transport.post_send(kOne, values(0, 1, 0), with_grad.mul(2)), ArgumentError,
                   "has autograd history");
      send(transport, kOne, values(0, 1, 0), sent);
    } else {
      expect_same(receive(transport, kZero, values(0, 1, 0)), sent);
    }
  });
}

TEST_P(TransportSuite, ShapesMayChangeFromMicrobatchToMicrobatch) {
  run(2, [&](Transport& transport) {
    for (int32_t i = 0; i < 30; ++i) {
      const std::vector<int64_t> shape(static_cast<std::size_t>(i % 4), 1 + i % 5);
      const c10::IValue sent =
          i % 7 == 6 ? tree::tuple({at::full(shape, i), i})
                     : c10::IValue(at::full(shape, i, i % 2 ? at::kLong : at::kFloat));
      if (transport.rank() == kZero) {
        send(transport, kOne, values(0, 1, i), sent);
      } else {
        expect_same(receive(transport, kZero, values(0, 1, i)), sent);
      }
    }
  });
}

TEST_P(TransportSuite, BothDirectionsAtOnceWithSeveralTensors) {
  run(2, [&](Transport& transport) {
    const bool first = transport.rank() == kZero;
    const Rank other = first ? kOne : kZero;
    for (int32_t i = 0; i < 50; ++i) {
      const c10::IValue forward = tree::tuple({at::full({3, 2}, i), at::full({1 + i}, -i)});
      const c10::IValue backward = tree::tuple({at::full({5}, 2 * i), at::full({2, 2, 1 + i}, i)});
      const auto mine = first ? values(0, 1, i) : gradients(1, 0, i);
      const auto theirs = first ? gradients(1, 0, i) : values(0, 1, i);
      const auto sent = transport.post_send(other, mine, first ? forward : backward);
      expect_same(receive(transport, other, theirs), first ? backward : forward);
      transport.wait_send(sent, soon());
    }
  });
}

TEST_P(TransportSuite, SendsToItself) {
  run(1, [&](Transport& transport) {
    for (int32_t i = 0; i < 10; ++i) {
      const auto sent = transport.post_send(kZero, values(0, 1, i), at::full({2}, i));
      expect_same(receive(transport, kZero, values(0, 1, i)), at::full({2}, i));
      transport.wait_send(sent, soon());
    }
  });
}

TEST_P(TransportSuite, EveryPartOfAnIdentityCounts) {
  run(2, [&](Transport& transport) {
    TransferId other_stage = values(0, 1, 3, 5);
    other_stage.from = StageId(2);
    TransferId other_reader = values(0, 1, 3, 5);
    other_reader.to = StageId(3);
    TransferId result = values(0, 1, 3, 5);
    result.direction = Direction::kResult;
    const std::vector<TransferId> ids = {values(0, 1, 3, 5),
                                         values(0, 1, 3, 6),
                                         values(0, 1, 4, 5),
                                         gradients(0, 1, 3, 5),
                                         other_stage,
                                         other_reader,
                                         result};
    std::vector<PendingPtr> pending;
    if (transport.rank() == kZero) {
      for (std::size_t i = 0; i < ids.size(); ++i) {
        pending.push_back(transport.post_send(kOne, ids[i], static_cast<int64_t>(i)));
      }
      for (const auto& sent : pending) transport.wait_send(sent, soon());
    } else {
      for (const auto& id : ids) pending.push_back(transport.post_receive(kZero, id));
      for (std::size_t i = ids.size(); i-- > 0;) {
        EXPECT_EQ(transport.wait_receive(pending[i], soon()).value.toInt(),
                  static_cast<int64_t>(i));
      }
    }
  });
}

TEST_P(TransportSuite, ASendIsDoneWhenItMayBeLetGoOf) {
  if (GetParam().buffered) GTEST_SKIP() << "sends may be done at once";
  run(2, [&](Transport& transport) {
    if (transport.rank() == kZero) {
      const auto sent = transport.post_send(kOne, values(0, 1, 0), 5);
      EXPECT_FALSE(sent->is_done());
      EXPECT_ERROR(transport.wait_send(sent, at_once()), TimeoutError,
                   "for rank 1 to post the receive of values of stage 0 for stage 1");
      transport.barrier(soon());
      transport.wait_send(sent, soon());
      EXPECT_TRUE(sent->is_done());
    } else {
      transport.barrier(soon());
      EXPECT_EQ(receive(transport, kZero, values(0, 1, 0)).toInt(), 5);
    }
  });
}

TEST_P(TransportSuite, SaysWhenAValueWasSent) {
  run(2, [&](Transport& transport) {
    if (transport.rank() == kZero) {
      send(transport, kOne, values(0, 1, 0), 1);
    } else {
      const auto receive = transport.post_receive(kZero, values(0, 1, 0));
      const auto received = transport.wait_receive(receive, soon());
      EXPECT_LE(received.sent, Deadline::Clock::now());
      EXPECT_GT(received.sent, Deadline::Clock::now() - std::chrono::seconds(60));
    }
  });
}

TEST_P(TransportSuite, RefusesMisuse) {
  run(2, [&](Transport& transport) {
    EXPECT_ERROR(transport.post_send(Rank(2), values(0, 1, 0), 1), ArgumentError, "no rank 2");
    EXPECT_ERROR(transport.post_receive(Rank(-1), values(0, 1, 0)), ArgumentError, "no rank -1");
    EXPECT_ERROR(transport.broadcast(1, Rank(9), soon()), ArgumentError, "no rank 9");
    EXPECT_ERROR(transport.wait_receive(nullptr, soon()), ArgumentError, "there is no receive");
    EXPECT_ERROR(transport.wait_send(nullptr, soon()), ArgumentError, "there is no send");
    const Rank me = transport.rank();
    const auto sent = transport.post_send(me, values(0, 1, 0), 1);
    EXPECT_ERROR(transport.post_send(me, values(0, 1, 0), 2), ArgumentError,
                 "values of stage 0 for stage 1, microbatch 0, step 0");
    const auto posted = transport.post_receive(me, values(0, 1, 0));
    EXPECT_ERROR(transport.post_receive(me, values(0, 1, 0)), ArgumentError,
                 "values of stage 0 for stage 1, microbatch 0, step 0");
    EXPECT_ERROR(transport.wait_receive(sent, soon()), ArgumentError, "not a receive");
    EXPECT_ERROR(transport.wait_send(posted, soon()), ArgumentError, "not a send");
    EXPECT_EQ(transport.wait_receive(posted, soon()).value.toInt(), 1);
    EXPECT_ERROR(transport.wait_receive(posted, soon()), ArgumentError, "already waited for");
    transport.wait_send(sent, soon());
  });
}

}  // namespace
}  // namespace stagecraft
