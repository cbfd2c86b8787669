// What travels over MPI: from messages that it buffers to those that wait for their receiver, many
// at a time, shapes that change, worlds after and beside each other.

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>

#include "stagecraft/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/mpi_ranks.h"

namespace stagecraft {
namespace {

TransferId values(int32_t microbatch, uint64_t step = 0) {
  return {step, Direction::kForward, StageId(0), StageId(1), MicrobatchId(microbatch)};
}
Deadline soon() {
  return Deadline::after(std::chrono::seconds(60));
}

at::Tensor bytes_of(int64_t size, int32_t seed) {
  return at::arange(size, at::kLong).add(seed).to(at::kByte);
}

// There and back between each pair of neighbours.
void exchange(Transport& transport, int64_t size, int32_t i) {
  const Rank other(transport.rank().value() ^ 1);
  const auto receive = transport.post_receive(other, values(i));
  const auto sent =
      transport.post_send(other, values(i), bytes_of(size, i + transport.rank().value()));
  const auto got = transport.wait_receive(receive, soon()).value.toTensor();
  EXPECT_TRUE(at::equal(got, bytes_of(size, i + other.value()))) << size << " bytes";
  transport.wait_send(sent, soon());
}

TEST(MpiTraffic, EverySizeArrives) {
  MpiRanks::run(2, {}, [](Transport& transport) {
    int32_t i = 0;
    for (int64_t size = 1; size <= int64_t{16} << 20U; size *= 4) {
      for (const int64_t more : {0, 1, 3}) exchange(transport, size + more, i++);
    }
    // The memory of what repeats is posted ahead.
    for (int repeat = 0; repeat < 6; ++repeat) exchange(transport, 3 << 20U, i++);
  });
}

TEST(MpiTraffic, ManyAreInFlightBothWaysAndShapesChange) {
  MpiRanks::run(2, {}, [](Transport& transport) {
    constexpr int32_t kCount = 60;
    const auto size_of = [](int32_t i) { return int64_t{1} << (i % 22); };
    const Rank other(1 - transport.rank().value());
    for (uint64_t step = 0; step < 3; ++step) {
      std::vector<PendingPtr> sends;
      std::vector<PendingPtr> receives;
      for (int32_t i = 0; i < kCount; ++i) {
        receives.push_back(transport.post_receive(other, values(i, step)));
        sends.push_back(transport.post_send(other, values(i, step),
                                            bytes_of(size_of(i), i + transport.rank().value())));
      }
      for (int32_t i = kCount - 1; i >= 0; --i) {
        const auto got =
            transport.wait_receive(receives[static_cast<std::size_t>(i)], soon()).value.toTensor();
        EXPECT_TRUE(at::equal(got, bytes_of(size_of(i), i + other.value()))) << i;
      }
      for (const auto& send : sends) transport.wait_send(send, soon());
      transport.barrier(soon());
    }
  });
}

// The next world does not receive values that were not received before a world ended.
TEST(MpiTraffic, WorldsAfterEachOtherDoNotMix) {
  for (int32_t round = 0; round < 20; ++round) {
    MpiRanks::run(2, {}, [&](Transport& transport) {
      const Rank other(1 - transport.rank().value());
      transport.post_send(other, values(1), -1);
      if (round % 2 == 0) transport.post_send(other, values(2), bytes_of(1 << 20U, round));
      exchange(transport, 1000 + round, 3);
    });
  }
}

TEST(MpiTraffic, WorldsBesideEachOtherDoNotMix) {
  MpiRanks::run(2, {}, [](Transport& transport) {
    JoinOptions options;
    options.num_ranks = 2;
    const auto other = join_mpi(options);
    for (int32_t i = 0; i < 20; ++i) {
      const auto peer = Rank(1 - transport.rank().value());
      const auto here = transport.post_receive(peer, values(i));
      const auto there = other->post_receive(peer, values(i));
      const auto first = other->post_send(peer, values(i), 2 * i);
      const auto second = transport.post_send(peer, values(i), 2 * i + 1);
      EXPECT_EQ(transport.wait_receive(here, soon()).value.toInt(), 2 * i + 1);
      EXPECT_EQ(other->wait_receive(there, soon()).value.toInt(), 2 * i);
      other->wait_send(first, soon());
      transport.wait_send(second, soon());
    }
    other->barrier(soon());
  });
}

TEST(MpiTraffic, AWorldThatCannotBeIsRefused) {
  JoinOptions options;
  options.num_ranks = MpiRanks::job_size() + 1;
  EXPECT_ERROR(join_mpi(options), ArgumentError, "ranks is not possible in a job of");
  options.num_ranks = 0;
  EXPECT_ERROR(join_mpi(options), ArgumentError, "a world of 0 ranks");
}

// 5 GB a process, so only where it is asked for.
TEST(MpiTraffic, MoreThanTwoGigabytesInOneMessage) {
  if (std::getenv("SC_LARGE_MESSAGES") == nullptr) GTEST_SKIP() << "SC_LARGE_MESSAGES is not set";
  ProcessTransportOptions options;
  options.max_silence = std::chrono::seconds(60);
  MpiRanks::run(2, options, [](Transport& transport) {
    constexpr int64_t kNumbers = (int64_t{1} << 28U) + 77;  // of 8 bytes
    if (transport.rank() == Rank(0)) {
      const auto sent = transport.post_send(Rank(1), values(0), at::arange(kNumbers, at::kLong));
      transport.wait_send(sent, soon());
    } else {
      const auto receive = transport.post_receive(Rank(0), values(0));
      const auto got = transport.wait_receive(receive, soon()).value.toTensor();
      ASSERT_EQ(got.numel(), kNumbers);
      EXPECT_TRUE(at::equal(got, at::arange(kNumbers, at::kLong)));
    }
    transport.barrier(soon());
  });
}

}  // namespace
}  // namespace stagecraft
