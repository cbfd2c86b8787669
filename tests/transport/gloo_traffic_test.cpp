// What travels between processes: sizes, shapes, memory posted ahead, damage.

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include "stagecraft/base/error.h"
#include "stagecraft/transport/gloo/join.h"
#include "stagecraft/transport/wire/frame.h"
#include "stagecraft/transport/wire/wire_transport.h"
#include "tests/support/expect_error.h"
#include "tests/support/gloo_ranks.h"
#include "tests/transport/traffic.h"

namespace stagecraft {
namespace {

using detail::WireTransport;

const Rank kZero(0);
const Rank kOne(1);

using Wrap =
    std::function<std::unique_ptr<detail::ByteTransport>(std::unique_ptr<detail::ByteTransport>)>;

// Two ranks; the byte transport of rank 0 is wrapped.
std::vector<ProcessEnd> run_two(const detail::WireOptions& options,
                                const std::function<void(WireTransport&)>& body,
                                const Wrap& wrap = nullptr) {
  const GlooRanks world(2);
  Processes processes(2, [&](int32_t i) {
    auto byte_transport = detail::connect_gloo(world.options(i));
    if (i == 0 && wrap) byte_transport = wrap(std::move(byte_transport));
    WireTransport transport(std::move(byte_transport), options);
    body(transport);
    transport.barrier(soon());
  });
  return processes.wait();
}

void expect_returned(const std::vector<ProcessEnd>& ends) {
  for (const auto& end : ends) EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
}

void exchange(WireTransport& transport, int32_t i, const at::Tensor& tensor) {
  if (transport.rank() == kZero) {
    transport.wait_send(transport.post_send(kOne, values(i), tensor), soon());
  } else {
    const auto got = transport.wait_receive(transport.post_receive(kZero, values(i)), soon());
    EXPECT_TRUE(at::equal(got.value.toTensor(), tensor)) << i;
  }
}

TEST(GlooTraffic, SeveralLargeMessagesAreInFlightBothWays) {
  expect_returned(run_two({}, [](WireTransport& transport) {
    constexpr int32_t kCount = 4;
    constexpr int64_t kNumbers = 6'000'001;
    const Rank other(1 - transport.rank().value());
    std::vector<PendingPtr> sends;
    std::vector<PendingPtr> receives;
    for (int32_t i = 0; i < kCount; ++i) {
      receives.push_back(transport.post_receive(other, values(i)));
      sends.push_back(transport.post_send(
          other, values(i), at::full({kNumbers}, 10.0 * i + transport.rank().value())));
    }
    for (int32_t i = kCount - 1; i >= 0; --i) {
      const auto got = transport.wait_receive(receives[static_cast<std::size_t>(i)], soon());
      const auto& tensor = got.value.toTensor();
      EXPECT_EQ(tensor.numel(), kNumbers);
      EXPECT_TRUE(tensor.eq(10.0 * i + other.value()).all().item<bool>()) << i;
    }
    for (const auto& send : sends) transport.wait_send(send, soon());
  }));
}

TEST(GlooTraffic, LargeValuesArriveThoughTheirSenderLeavesAtOnce) {
  const GlooRanks world(2);
  Processes processes(2, [&](int32_t i) {
    WireTransport transport(detail::connect_gloo(world.options(i)),
                            {.linger = std::chrono::seconds(10)});
    const auto large = [](int32_t m) { return at::full({500'000 + m}, double(m)); };
    for (int32_t m = 0; m < 4; ++m) {
      if (i == 0) transport.post_send(kOne, values(m), large(m));
    }
    if (i == 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    for (int32_t m = 0; m < 4; ++m) {
      const auto got = transport.wait_receive(transport.post_receive(kZero, values(m)), soon());
      EXPECT_TRUE(at::equal(got.value.toTensor(), large(m)));
    }
  });
  expect_returned(processes.wait());
}

TEST(GlooTraffic, MemoryForARepeatedShapeIsPostedAheadAndUsed) {
  expect_returned(run_two({}, [](WireTransport& transport) {
    for (int32_t i = 0; i < 3; ++i) exchange(transport, i, at::full({50000}, i));
    EXPECT_EQ(transport.num_posted(), 0U);
    transport.barrier(soon());
    if (transport.rank() == kOne) {
      std::vector<PendingPtr> receives;
      for (int32_t i = 10; i < 14; ++i)
        receives.push_back(transport.post_receive(kZero, values(i)));
      EXPECT_EQ(transport.num_posted(), 4U);
      transport.barrier(soon());
      // They arrive in a different order.
      for (int32_t i = 0; i < 4; ++i) {
        const auto got = transport.wait_receive(receives[static_cast<std::size_t>(i)], soon());
        EXPECT_TRUE(at::equal(got.value.toTensor(), at::full({50000}, 10 + i)));
      }
      EXPECT_EQ(transport.num_posted(), 0U);
    } else {
      transport.barrier(soon());
      for (int32_t i = 13; i >= 10; --i) {
        transport.wait_send(transport.post_send(kOne, values(i), at::full({50000}, i)), soon());
      }
    }
  }));
}

TEST(GlooTraffic, MemoryForAShapeThatDoesNotComeAgainIsGivenBack) {
  expect_returned(run_two({}, [](WireTransport& transport) {
    int32_t next = 0;
    for (int round = 0; round < 5; ++round) {
      for (int i = 0; i < 3; ++i, ++next) exchange(transport, next, at::full({40000 + round}, i));
      transport.barrier(soon());
      if (transport.rank() == kOne) {
        std::vector<PendingPtr> receives;
        for (int32_t i = 0; i < 3; ++i) {
          receives.push_back(transport.post_receive(kZero, values(next + i)));
        }
        EXPECT_GE(transport.num_posted(), 3U);
        transport.barrier(soon());
        for (int32_t i = 0; i < 3; ++i) {
          const auto got = transport.wait_receive(receives[static_cast<std::size_t>(i)], soon());
          EXPECT_EQ(got.value.toTensor().numel(), i == 1 ? 40000 + round : 90000 + i);
        }
      } else {
        transport.barrier(soon());
        for (int32_t i = 0; i < 3; ++i) {
          const auto tensor = at::full({i == 1 ? 40000 + round : 90000 + i}, i);
          transport.wait_send(transport.post_send(kOne, values(next + i), tensor), soon());
        }
      }
      next += 3;
    }
    // The answers travel after this value.
    const auto deadline = soon();
    int64_t posted = 1;
    while (posted > 0 && !deadline.has_passed()) {
      posted = 0;
      for (const auto& count :
           transport.all_gather(static_cast<int64_t>(transport.num_posted()), soon())) {
        posted += count.toInt();
      }
    }
    EXPECT_EQ(posted, 0);
  }));
}

TEST(GlooTraffic, AThousandShapesAreForgottenAgain) {
  expect_returned(run_two({}, [](WireTransport& transport) {
    for (int32_t i = 0; i < 1200; ++i) exchange(transport, i, at::full({1 + i}, i));
    for (int32_t i = 0; i < 1200; ++i) exchange(transport, i, at::full({5000 + i % 700}, i));
    EXPECT_EQ(transport.num_posted(), 0U);
  }));
}

TEST(GlooTraffic, WhatIsPostedAheadSurvivesARecovery) {
  expect_returned(run_two({}, [](WireTransport& transport) {
    for (int32_t i = 0; i < 3; ++i) exchange(transport, i, at::full({50000}, i));
    if (transport.rank() == kOne) transport.post_receive(kZero, values(99));
    transport.barrier(soon());
    if (transport.rank() == kOne) transport.abort({kOne, "once"});
    transport.recover(soon());
    EXPECT_EQ(transport.num_posted(), transport.rank() == kOne ? 1U : 0U);
    transport.barrier(soon());
    for (int32_t i = 0; i < 3; ++i) {
      exchange(transport, i, at::full({50000}, i));
      EXPECT_EQ(transport.num_posted(), 0U);
    }
  }));
}

TEST(GlooTraffic, LargeCollectivesGoBetweenTheRanks) {
  for (const int32_t ranks : {2, 3, 4}) {
    const auto ends = run_gloo_ranks(ranks, {}, [&](Transport& transport) {
      const auto me = transport.rank().value();
      const auto numbers = [](int32_t rank) {
        return at::full({70001}, 0.1F).mul(at::ones({70001}).cumsum(0).add(rank)).sin();
      };
      auto expected = numbers(0);
      for (int32_t i = 1; i < ranks; ++i) expected.add_(numbers(i));
      EXPECT_TRUE(at::equal(transport.all_reduce(numbers(me), soon()), expected));
      const auto grid = numbers(me).slice(0, 0, 70000).view({100, 700}).t();
      EXPECT_EQ(transport.all_reduce(grid, soon()).strides(), grid.strides());
      const auto all = transport.all_gather(numbers(me), soon());
      for (int32_t i = 0; i < ranks; ++i) {
        EXPECT_TRUE(at::equal(all[static_cast<std::size_t>(i)].toTensor(), numbers(i)));
      }
      EXPECT_TRUE(
          at::equal(transport.broadcast(numbers(me), Rank(1), soon()).toTensor(), numbers(1)));
    });
    expect_returned(ends);
  }
}

TEST(GlooTraffic, LazilyConjugatedTensorsArriveAsTheyAre) {
  expect_returned(run_two({}, [](WireTransport& transport) {
    for (const int64_t size : {3, 30000}) {
      const auto numbers = at::complex(at::ones({size, 1}).cumsum(0), at::ones({size, 1}));
      for (int32_t i = 0; i < 3; ++i) {
        const auto id = values(static_cast<int32_t>(size) + i);
        const auto sent = numbers.conj().expand({size, 4});
        if (transport.rank() == kZero) {
          transport.wait_send(transport.post_send(kOne, id, sent), soon());
        } else {
          const auto got = transport.wait_receive(transport.post_receive(kZero, id), soon());
          EXPECT_TRUE(at::equal(got.value.toTensor(), sent.resolve_conj()));
        }
      }
    }
  }));
}

// A value that arrives twice aborts the world on the thread that reads it. Waiting threads are
// notified, even if no rank leaves.
TEST(GlooTraffic, AnIdThatComesTwiceEndsABarrierAtOnce) {
  const GlooRanks world(2);
  Processes processes(2, [&](int32_t i) {
    WireTransport transport(detail::connect_gloo(world.options(i)), {});
    transport.barrier(soon());
    if (i == 1) {
      const auto begin = std::chrono::steady_clock::now();
      EXPECT_ERROR(transport.barrier(soon()), PeerError, "microbatch 0");
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(8));
      return;
    }
    for (int round = 0; round < 2; ++round) transport.post_send(kOne, values(0), 1);
    try {
      transport.wait_receive(transport.post_receive(kOne, values(1)), soon());
    } catch (const PeerError&) {
      Processes::tell_parent();
      pause();
    }
  });
  processes.wait_for_word(0);
  const auto end = processes.wait({0})[1];
  EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
}

// Changes one byte of the message that `choose` takes.
class DamagingByteTransport final : public detail::ByteTransport {
 public:
  using Choose = std::function<bool(Tag, int64_t bytes)>;
  DamagingByteTransport(std::unique_ptr<ByteTransport> byte_transport, Choose choose)
      : byte_transport_(std::move(byte_transport)), choose_(std::move(choose)) {}

  Rank rank() const override { return byte_transport_->rank(); }
  int32_t num_ranks() const override { return byte_transport_->num_ranks(); }
  detail::WorkPtr send(Rank to, Tag tag, const at::Tensor& bytes) override {
    if (!choose_(tag, bytes.numel())) return byte_transport_->send(to, tag, bytes);
    const auto damaged = bytes.clone();
    damaged[bytes.numel() - 1].bitwise_xor_(16);
    return byte_transport_->send(to, tag, damaged);
  }
  detail::WorkPtr receive(Rank from, Tag tag, const at::Tensor& bytes) override {
    return byte_transport_->receive(from, tag, bytes);
  }
  bool prefers_polling() const override { return byte_transport_->prefers_polling(); }
  bool copies_in_send() const override { return byte_transport_->copies_in_send(); }

 private:
  std::unique_ptr<ByteTransport> byte_transport_;
  Choose choose_;
};

Wrap damage(const DamagingByteTransport::Choose& choose) {
  return [choose](std::unique_ptr<detail::ByteTransport> byte_transport)
             -> std::unique_ptr<detail::ByteTransport> {
    return std::make_unique<DamagingByteTransport>(std::move(byte_transport), choose);
  };
}

void exchange_damaged(WireTransport& transport, int64_t size) {
  for (int32_t i = 0; i < 3; ++i) exchange(transport, i, at::full({size}, i));
  transport.barrier(soon());
  PendingPtr send;
  if (transport.rank() == kZero) send = transport.post_send(kOne, values(3), at::full({size}, 3));
  EXPECT_ERROR(
      transport.wait_receive(transport.post_receive(kZero, values(3)), soon()), PeerError,
      "rank 0: values of stage 0 for stage 1, microbatch 3, step 0 arrived damaged at rank 1");
  transport.recover(soon());
  exchange(transport, 3, at::full({size}, 4));
}

TEST(GlooTraffic, ADamagedMessageIsNamedAndTheWorldRecovers) {
  for (const int64_t size : {100, 50000}) {
    std::atomic<int> count = 0;
    const bool is_large = size > 10000;
    const auto choose = [&](detail::ByteTransport::Tag tag, int64_t bytes) {
      const bool is_value =
          is_large ? tag >= detail::kFirstLayoutTag : tag == detail::kFrameTag && bytes > size * 4;
      return is_value && ++count == 4;
    };
    expect_returned(run_two(
        {.use_checksums = true}, [&](WireTransport& t) { exchange_damaged(t, size); },
        damage(choose)));
  }
}

TEST(GlooTraffic, WithoutChecksumsDamageIsNotSeen) {
  std::atomic<int> count = 0;
  const auto choose = [&](detail::ByteTransport::Tag tag, int64_t) {
    return tag >= detail::kFirstLayoutTag && ++count == 1;
  };
  expect_returned(run_two(
      {},
      [](WireTransport& transport) {
        if (transport.rank() == kZero) {
          exchange(transport, 0, at::ones({50000}));
        } else {
          const auto got = transport.wait_receive(transport.post_receive(kZero, values(0)), soon());
          EXPECT_FALSE(at::equal(got.value.toTensor(), at::ones({50000})));
        }
      },
      damage(choose)));
}

TEST(GlooTraffic, ADamagedFrameEndsTheConnection) {
  std::atomic<int> count = 0;
  const auto choose = [&](detail::ByteTransport::Tag tag, int64_t bytes) {
    return tag == detail::kFrameTag && bytes == sizeof(detail::FrameHead) && ++count == 1;
  };
  const auto wait = [](WireTransport& transport) {
    const Rank other(1 - transport.rank().value());
    transport.wait_receive(transport.post_receive(other, values(0)), soon());
  };
  const auto ends = run_two({}, wait, damage(choose));
  EXPECT_EQ(ends[1].type, "PeerError");
  EXPECT_THAT(ends[1].message, testing::HasSubstr("rank 0: it sent an invalid message"));
  EXPECT_EQ(ends[0].type, "PeerError") << ends[0].message;
}

TEST(GlooTraffic, WhoSendsWhatMakesNoSenseIsToldSo) {
  std::atomic<int> count = 0;
  const auto choose = [&](detail::ByteTransport::Tag tag, int64_t bytes) {
    return tag == detail::kFrameTag && bytes == sizeof(detail::FrameHead) && ++count == 1;
  };
  const GlooRanks world(2);
  Processes processes(2, [&](int32_t i) {
    auto byte_transport = detail::connect_gloo(world.options(i));
    if (i == 0) byte_transport = damage(choose)(std::move(byte_transport));
    // Nothing but word of it can end the wait of rank 0.
    WireTransport transport(std::move(byte_transport), {.max_silence = std::chrono::seconds(0)});
    const Rank other(1 - i);
    EXPECT_ERROR(transport.wait_receive(transport.post_receive(other, values(0)), soon()),
                 PeerError, "rank 0: it sent an invalid message");
    if (i == 0) Processes::tell_parent();
    if (i == 1) pause();
  });
  processes.wait_for_word(0);
  EXPECT_EQ(processes.wait({1})[0].kind, ProcessEnd::Kind::kReturned);
}

}  // namespace
}  // namespace stagecraft
