// What can be said of NCCL without a GPU: how it is found, and what happens when it fails. A fake
// library stands for it.

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include "stagecraft/base/error.h"
#include "stagecraft/transport/nccl/connect_nccl.h"
#include "stagecraft/transport/nccl/join_nccl.h"
#include "stagecraft/transport/nccl/nccl_library.h"
#include "tests/support/expect_error.h"
#include "tests/support/gloo_ranks.h"
#include "tests/support/nccl_ranks.h"
#include "tests/transport/traffic.h"

namespace stagecraft {
namespace {

using testing::HasSubstr;

TEST(NcclLibrary, SaysWhereItLookedAndHowToGetIt) {
  setenv("STAGECRAFT_NCCL_LIBRARY", "/nowhere/libnccl.so", 1);
  EXPECT_ERROR(detail::NcclLibrary::load(), ArgumentError, "/nowhere/libnccl.so");
  EXPECT_ERROR(detail::NcclLibrary::load(), ArgumentError, "STAGECRAFT_NCCL_LIBRARY");
}

TEST(NcclLibrary, RefusesALibraryThatIsAnother) {
  setenv("STAGECRAFT_NCCL_LIBRARY", "libm.so.6", 1);
  EXPECT_ERROR(detail::NcclLibrary::load(), ArgumentError, "libm.so.6 has no ncclGetVersion");
}

TEST(NcclLibrary, FindsTheFunctions) {
  use_fake_nccl();
  const auto library = detail::NcclLibrary::load();
  EXPECT_EQ(library->version(), "2.0.99");
  EXPECT_THAT(library->describe(6), HasSubstr("remote process"));
  detail::NcclLibrary::UniqueId a{};
  detail::NcclLibrary::UniqueId b{};
  EXPECT_EQ(library->get_unique_id(&a), 0);
  EXPECT_EQ(library->get_unique_id(&b), 0);
  EXPECT_NE(a.bytes, b.bytes);
}

TEST(NcclJoin, NeedsAGpu) {
  if (at::globalContext().hasCUDA()) GTEST_SKIP() << "there is one";
  use_fake_nccl();
  EXPECT_ERROR(join_nccl(JoinOptions()), ArgumentError, "needs a GPU");
}

TEST(NcclJoin, OnlyPairsThatTalkHaveCommunicators) {
  use_fake_nccl();
  const auto ends = run_nccl_ranks(4, c10::kCPU, {}, [](Transport& transport) {
    const auto me = transport.rank().value();
    EXPECT_EQ(num_communicators(), 0);
    transport.barrier(soon());
    // A pipeline: each rank sends to the next one, several times.
    for (int32_t i = 0; i < 3; ++i) {
      PendingPtr receive;
      if (me > 0) receive = transport.post_receive(Rank(me - 1), values(i));
      PendingPtr send;
      if (me < 3) send = transport.post_send(Rank(me + 1), values(i), at::full({5000}, i));
      if (receive) {
        const auto got = transport.wait_receive(receive, soon()).value.toTensor();
        EXPECT_TRUE(at::equal(got, at::full({5000}, i)));
      }
      if (send) transport.wait_send(send, soon());
    }
    transport.barrier(soon());
    EXPECT_EQ(num_communicators(), me == 0 || me == 3 ? 1 : 2);
  });
  for (const auto& end : ends) EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
}

// All pairs connect at the same moment, in both directions.
TEST(NcclJoin, AllPairsMayConnectAtTheSameTime) {
  use_fake_nccl();
  const auto ends = run_nccl_ranks(4, c10::kCPU, {}, [](Transport& transport) {
    const auto me = transport.rank();
    std::vector<PendingPtr> receives;
    std::vector<PendingPtr> sends;
    for (Rank other(0); other.value() < 4; ++other) {
      if (other == me) continue;
      receives.push_back(transport.post_receive(other, values(other.value())));
      sends.push_back(transport.post_send(other, values(me.value()), at::ones({5000})));
    }
    for (const auto& receive : receives) {
      EXPECT_TRUE(
          at::equal(transport.wait_receive(receive, soon()).value.toTensor(), at::ones({5000})));
    }
    for (const auto& send : sends) transport.wait_send(send, soon());
    transport.barrier(soon());
    EXPECT_EQ(num_communicators(), 6);
  });
  for (const auto& end : ends) EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
}

// A communicator waits for the transfers of all others, as CUDA may make it. Then pairs cannot
// connect at the same moment.
TEST(NcclJoin, RanksConnectInTurns) {
  use_fake_nccl();
  setenv("SC_FAKE_NCCL", "wait", 1);
  const auto ends = run_nccl_ranks(4, c10::kCPU, {}, [](Transport& transport) {
    std::vector<Rank> others;
    for (Rank rank(0); rank.value() < 4; ++rank) {
      if (rank != transport.rank()) others.push_back(rank);
    }
    transport.connect(others, soon());
    transport.barrier(soon());
    EXPECT_EQ(num_communicators(), 6);
    std::vector<PendingPtr> receives;
    for (const Rank other : others) {
      receives.push_back(transport.post_receive(other, values(0)));
      transport.post_send(other, values(0), at::ones({5000}));
    }
    for (const PendingPtr& receive : receives) {
      EXPECT_TRUE(
          at::equal(transport.wait_receive(receive, soon()).value.toTensor(), at::ones({5000})));
    }
    transport.barrier(soon());
    EXPECT_EQ(num_communicators(), 6);
  });
  unsetenv("SC_FAKE_NCCL");
  for (const auto& end : ends) EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
}

// Rank 0 sends a value to rank 1; rank 2 waits in a barrier. One of them behaves in its own way.
std::vector<ProcessEnd> send_with(int32_t odd, const char* behaviour,
                                  std::chrono::seconds join_timeout) {
  use_fake_nccl();
  const GlooRanks world(3);
  Processes processes(3, [&](int32_t i) {
    if (i == odd) setenv("SC_FAKE_NCCL", behaviour, 1);
    auto options = world.options(i);
    options.join_timeout = join_timeout;
    const auto end = detail::connect_nccl(options, c10::kCPU);
    if (i == 0) end->wait_send(end->post_send(Rank(1), values(0), at::ones({2048})), soon());
    if (i == 1) end->wait_receive(end->post_receive(Rank(0), values(0)), soon());
    end->barrier(soon());
  });
  return processes.wait();
}

TEST(NcclJoin, WhatNcclRefusesToTheSenderIsSaidOnEveryRank) {
  const auto ends = send_with(0, "refuse", std::chrono::seconds(20));
  for (const auto& end : ends) {
    EXPECT_THAT(end.message, HasSubstr("rank 0 cannot send values of stage 0 for stage 1"));
    EXPECT_THAT(end.message, HasSubstr("NCCL: rank 0 with rank 1: ncclCommInitRank"));
    EXPECT_LT(end.seconds, 15);
  }
}

TEST(NcclJoin, WhatNcclRefusesToTheReceiverIsSaidOnEveryRank) {
  const auto ends = send_with(1, "refuse", std::chrono::seconds(20));
  for (const auto& end : ends) {
    EXPECT_EQ(end.type, "PeerError") << end.message;
    EXPECT_THAT(end.message, HasSubstr("rank 1: NCCL: rank 1 with rank 0: ncclCommInitRank"));
    EXPECT_LT(end.seconds, 15);
  }
}

TEST(NcclJoin, ARankThatHangsInsideNcclIsNamedAtTheDeadline) {
  for (const int32_t odd : {0, 1}) {
    const auto ends = send_with(odd, "hang", std::chrono::seconds(3));
    for (const auto& end : ends) {
      EXPECT_EQ(end.kind, ProcessEnd::Kind::kThrew);
      EXPECT_THAT(end.message, HasSubstr("rank 0 cannot send values of stage 0 for stage 1"));
      EXPECT_THAT(end.message, HasSubstr("for rank 1 to connect over NCCL"));
      EXPECT_LT(end.seconds, 15);
    }
  }
}

// A receive that NCCL gives up looks like one that has come; the ranks do not go on with it.
TEST(NcclJoin, NobodyPassesABarrierWithAValueThatWasLost) {
  use_fake_nccl();
  for (const bool with_barrier : {true, false}) {
    const GlooRanks world(2);
    Processes processes(2, [&](int32_t i) {
      if (i == 1) setenv("SC_FAKE_NCCL", "fail", 1);
      const auto end = detail::connect_nccl(world.options(i), c10::kCPU);
      if (i == 0) {
        // So little that it leaves this rank, read or not.
        end->post_send(Rank(1), values(0), at::ones({2048}));
      } else {
        end->wait_receive(end->post_receive(Rank(0), values(0)), soon());
      }
      if (with_barrier) {
        end->barrier(soon());
      } else {
        end->all_gather(i, soon());
      }
    });
    const auto ends = processes.wait();
    for (const auto& end : ends) {
      EXPECT_EQ(end.type, "PeerError") << end.message;
      EXPECT_THAT(end.message, HasSubstr("NCCL between it and rank 1: ncclRecv"));
    }
  }
}

TEST(NcclJoin, RecoversWithNewCommunicators) {
  use_fake_nccl();
  const auto ends = run_nccl_ranks(3, c10::kCPU, {}, [](Transport& transport) {
    const auto me = transport.rank().value();
    const Rank next((me + 1) % 3);
    const Rank last((me + 2) % 3);
    for (int32_t round = 0; round < 5; ++round) {
      // Some values were sent but not received when the world ends.
      std::vector<PendingPtr> sends;
      for (int32_t i = 0; i < 10; ++i) {
        try {
          sends.push_back(transport.post_send(next, values(i), at::full({100'000}, round)));
        } catch (const PeerError&) {
          // Another rank was faster.
        }
      }
      if (me == round % 3) transport.abort({Rank(me), "that is it"});
      transport.recover(soon());
      const auto receive = transport.post_receive(last, values(0));
      const auto send = transport.post_send(next, values(0), at::full({1000}, 100 + round));
      const auto got = transport.wait_receive(receive, soon()).value.toTensor();
      EXPECT_TRUE(at::equal(got, at::full({1000}, 100 + round)));
      transport.wait_send(send, soon());
      transport.barrier(soon());
    }
  });
  for (const auto& end : ends) EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
}

TEST(NcclJoin, AKilledRankIsNamedOnEveryOther) {
  use_fake_nccl();
  for (int32_t victim = 0; victim < 3; ++victim) {
    const GlooRanks world(3);
    Processes processes(3, [&](int32_t i) {
      const auto end = detail::connect_nccl(world.options(i), c10::kCPU);
      end->barrier(soon());
      Processes::tell_parent();
      const Rank next((i + 1) % 3);
      const Rank last((i + 2) % 3);
      for (int32_t k = 0;; ++k) {
        const auto receive = end->post_receive(last, values(k));
        const auto send = end->post_send(next, values(k), at::ones({1 << 20}));
        end->wait_receive(receive, soon());
        end->wait_send(send, soon());
      }
    });
    for (int32_t i = 0; i < 3; ++i) processes.wait_for_word(i);
    usleep(50'000);
    processes.signal(victim, SIGKILL);
    const auto ends = processes.wait({victim});
    for (int32_t i = 0; i < 3; ++i) {
      if (i == victim) continue;
      const auto& end = ends[static_cast<std::size_t>(i)];
      EXPECT_EQ(end.type, "PeerError") << end.message;
      EXPECT_THAT(end.message, HasSubstr("rank " + std::to_string(victim)));
      EXPECT_LT(end.seconds, 15);
    }
  }
}

}  // namespace
}  // namespace stagecraft
