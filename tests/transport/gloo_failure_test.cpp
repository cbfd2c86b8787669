// Processes that die, stop or leave, and what the others see.

#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/ones.h>

#include "stagecraft/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/gloo_ranks.h"
#include "tests/transport/traffic.h"

namespace stagecraft {
namespace {

using Clock = std::chrono::steady_clock;
using testing::HasSubstr;

// Ranks do `wait` when all are there; then `strike` happens to one of them. Every other rank is to
// throw PeerError that names it, within the limit.
struct Case {
  std::string name;
  int32_t ranks = 3;
  int32_t victim = 1;
  ProcessTransportOptions options;
  std::function<void(Transport&)> wait;
  std::function<void(Processes&, int32_t)> strike;
  std::string message;
  /// Below the silence at which a rank would be found otherwise.
  std::chrono::milliseconds limit = std::chrono::seconds(8);
};

void run_case(const Case& c) {
  SCOPED_TRACE(c.name);
  const GlooRanks world(c.ranks);
  Processes processes(c.ranks, [&](int32_t i) {
    auto options = world.options(i);
    options.transport = c.options;
    const auto joined = join_gloo(options);
    joined->barrier(soon());
    Processes::tell_parent();
    try {
      c.wait(*joined);
    } catch (const PeerError& error) {
      EXPECT_EQ(error.peer(), Rank(c.victim)) << error.what();
      // The world is unusable. `recover` throws instead of waiting for the dead rank.
      if (c.options.max_silence > std::chrono::seconds(5)) {
        EXPECT_THROW(joined->recover(soon()), PeerError);
      }
      throw;
    }
  });
  for (int32_t i = 0; i < c.ranks; ++i) processes.wait_for_word(i);
  c.strike(processes, c.victim);
  const auto begin = Clock::now();
  const auto ends = processes.wait({c.victim});
  EXPECT_LT(Clock::now() - begin, c.limit);
  for (int32_t i = 0; i < c.ranks; ++i) {
    if (i == c.victim) continue;
    const auto& end = ends[static_cast<std::size_t>(i)];
    EXPECT_EQ(end.kind, ProcessEnd::Kind::kThrew) << "rank " << i;
    EXPECT_EQ(end.type, "PeerError") << end.message;
    EXPECT_THAT(end.message, HasSubstr("rank " + std::to_string(c.victim))) << "rank " << i;
    EXPECT_THAT(end.message, HasSubstr(c.message)) << "rank " << i;
  }
}

void kill_it(Processes& processes, int32_t victim) {
  processes.signal(victim, SIGKILL);
}

void wait_for_value(Transport& transport) {
  const Rank from((transport.rank().value() + 1) % transport.num_ranks());
  transport.wait_receive(transport.post_receive(from, values(0)), soon());
}

TEST(GlooFailure, AKilledRankIsNamedOnEveryOther) {
  for (int32_t victim = 0; victim < 3; ++victim) {
    run_case({.name = "receive",
              .victim = victim,
              .options = {},
              .wait = wait_for_value,
              .strike = kill_it,
              .message = "its process has ended"});
    run_case({.name = "barrier",
              .victim = victim,
              .options = {},
              .wait =
                  [victim](Transport& transport) {
                    if (transport.rank() == Rank(victim)) wait_for_value(transport);
                    transport.barrier(soon());
                  },
              .strike = kill_it,
              .message = "its process has ended"});
  }
  for (const int32_t ranks : {2, 4}) {
    run_case({.name = "other sizes",
              .ranks = ranks,
              .options = {},
              .wait = wait_for_value,
              .strike = kill_it,
              .message = "its process has ended"});
  }
}

// If only a part of a message has arrived, gloo does not report a lost peer to the thread that
// waits for the message. A part arrives only if memory for the message was posted. This is the case
// from the third value of a layout on.
void send_to_one_that_is_stopped(Transport& transport) {
  const auto tensor = at::ones({16 << 20});
  const bool sends = transport.rank() == Rank(1);
  for (int32_t i = 0; i < 3; ++i) {
    if (sends) {
      transport.wait_send(transport.post_send(Rank(0), values(i), tensor), soon());
    } else {
      transport.wait_receive(transport.post_receive(Rank(1), values(i)), soon());
    }
  }
  const auto receive = sends ? nullptr : transport.post_receive(Rank(1), values(3));
  transport.barrier(soon());
  if (sends) {
    Processes::tell_parent();
    raise(SIGSTOP);
    const auto sent = transport.post_send(Rank(0), values(3), tensor);
    Processes::tell_parent();
    transport.wait_send(sent, soon());
  } else {
    transport.wait_receive(receive, soon());
  }
}

// The receiver, rank 0, is stopped while the victim begins to send; then the victim is killed.
void kill_within_a_message(Processes& processes, int32_t victim) {
  const auto wait_until_stopped = [&](int32_t i) {
    int status = 0;
    waitpid(processes.pid(i), &status, WUNTRACED);
    EXPECT_TRUE(WIFSTOPPED(status));
  };
  processes.wait_for_word(victim);
  processes.signal(0, SIGSTOP);
  wait_until_stopped(0);
  wait_until_stopped(victim);
  processes.signal(victim, SIGCONT);
  processes.wait_for_word(victim);
  usleep(100'000);
  processes.signal(victim, SIGKILL);
  processes.signal(0, SIGCONT);
}

TEST(GlooFailure, ARankThatDiesWithinAMessageIsNoticedToo) {
  run_case({.name = "within a message",
            .ranks = 2,
            .options = {},
            .wait = send_to_one_that_is_stopped,
            .strike = kill_within_a_message,
            .message = "its process has ended"});
}

TEST(GlooFailure, ASendToADeadRankEndsToo) {
  run_case({.name = "send",
            .ranks = 2,
            .options = {},
            .wait =
                [](Transport& transport) {
                  if (transport.rank() == Rank(1)) wait_for_value(transport);
                  for (int32_t i = 0;; ++i) {
                    const auto sent = transport.post_send(Rank(1), values(i), at::ones({1 << 22}));
                    transport.wait_send(sent, soon());
                  }
                },
            .strike = kill_it,
            .message = "its process has ended"});
}

TEST(GlooFailure, AStoppedRankIsNamedWhenItHasSaidNothingForLong) {
  ProcessTransportOptions options;
  options.max_silence = std::chrono::seconds(3);
  options.linger = std::chrono::milliseconds(100);
  run_case(
      {.name = "stopped",
       .options = options,
       .wait = wait_for_value,
       .strike = [](Processes& processes, int32_t victim) { processes.signal(victim, SIGSTOP); },
       .message = "no heartbeat for",
       .limit = std::chrono::seconds(15)});
}

TEST(GlooFailure, WithoutThatTheDeadlineFindsIt) {
  const GlooRanks world(2);
  Processes processes(2, [&](int32_t i) {
    auto options = world.options(i);
    options.transport.max_silence = std::chrono::seconds(0);
    options.transport.linger = std::chrono::milliseconds(100);
    const auto joined = join_gloo(options);
    joined->barrier(soon());
    Processes::tell_parent();
    if (i == 1) raise(SIGSTOP);
    const auto receive = joined->post_receive(Rank(1), values(4));
    EXPECT_ERROR(joined->wait_receive(receive, Deadline::after(std::chrono::milliseconds(700))),
                 TimeoutError, "values of stage 0 for stage 1, microbatch 4, step 0, from rank 1");
    EXPECT_ERROR(joined->barrier(Deadline::after(std::chrono::milliseconds(100))), TimeoutError,
                 "rank 1 in barrier");
  });
  EXPECT_EQ(processes.wait({1})[0].kind, ProcessEnd::Kind::kReturned);
}

// A rank that was stopped for long hears of the abort when it goes on, and can recover.
TEST(GlooFailure, AStoppedRankThatGoesOnCanRecoverWithTheOthers) {
  const GlooRanks world(2);
  Processes processes(2, [&](int32_t i) {
    auto options = world.options(i);
    options.transport.max_silence = std::chrono::milliseconds(2500);
    const auto joined = join_gloo(options);
    Transport& transport = *joined;
    transport.barrier(soon());
    if (i == 1) raise(SIGSTOP);
    EXPECT_THROW(wait_for_value(transport), PeerError);
    if (i == 0) Processes::tell_parent();
    transport.recover(soon());
    EXPECT_EQ(transport.abort_reason(), nullptr);
    EXPECT_EQ(transport.all_gather(i, soon())[1].toInt(), 1);
  });
  processes.wait_for_word(0);
  processes.signal(1, SIGCONT);
  for (const auto& end : processes.wait())
    EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
}

TEST(GlooFailure, AProcessThatExitsWithoutAWordIsLost) {
  run_case({.name = "exit",
            .options = {},
            .wait =
                [](Transport& transport) {
                  if (transport.rank() == Rank(1)) _exit(3);
                  wait_for_value(transport);
                },
            .strike = [](Processes&, int32_t) {},
            .message = "its process has ended"});
}

std::size_t count_entries(const std::string& folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

// Until there are no more entries than that, for a while: threads end a little later.
std::size_t wait_for_entries(const std::string& folder, std::size_t most) {
  const auto deadline = Deadline::after(std::chrono::seconds(5));
  while (count_entries(folder) > most && !deadline.has_passed()) usleep(10'000);
  return count_entries(folder);
}

TEST(GlooFailure, AfterAnAbortANewWorldIsMadeInTheSameProcessAndNothingIsLeft) {
  constexpr int kWorlds = 6;
  std::vector<std::unique_ptr<GlooRanks>> worlds;
  for (int i = 0; i < kWorlds; ++i) worlds.push_back(std::make_unique<GlooRanks>(2));
  Processes processes(2, [&](int32_t i) {
    // Closes what this rank does not listen on.
    std::vector<JoinOptions> options;
    for (const auto& world : worlds) options.push_back(world->options(i));
    std::size_t threads = 0;
    std::size_t files = 0;
    for (int round = 0; round < kWorlds; ++round) {
      {
        const auto joined = join_gloo(options[static_cast<std::size_t>(round)]);
        Transport& transport = *joined;
        EXPECT_EQ(transport.all_gather(round, soon())[1 - i].toInt(), round);
        if (i == round % 2) transport.abort({Rank(i), "round " + std::to_string(round)});
        EXPECT_ERROR(transport.barrier(soon()), PeerError, "round " + std::to_string(round));
      }
      if (round > 0) continue;
      usleep(500'000);
      threads = count_entries("/proc/self/task");
      // Every later world takes a listener of rank 0's with it.
      files = count_entries("/proc/self/fd") - (i == 0 ? kWorlds - 1 : 0);
    }
    EXPECT_LE(wait_for_entries("/proc/self/task", threads), threads);
    EXPECT_LE(wait_for_entries("/proc/self/fd", files), files);
  });
  for (const auto& end : processes.wait()) {
    EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
    EXPECT_LT(end.seconds, 30);
  }
}

// A value that a rank sends to itself keeps its storage, whose deleter can run any code.
TEST(GlooFailure, AValueThatAnAbortReleasesMayCallTheTransport) {
  const GlooRanks world(2);
  Processes processes(2, [&](int32_t i) {
    const auto joined = join_gloo(world.options(i));
    Transport& transport = *joined;
    std::promise<void> released;
    float number = 0;
    if (i == 0) {
      const auto release = [&](void*) {
        transport.abort({Rank(0), "from a deleter"});
        released.set_value();
      };
      transport.post_send(Rank(0), values(0), at::from_blob(&number, {1}, release));
    }
    transport.barrier(soon());
    if (i == 1) transport.abort({Rank(1), "on purpose"});
    EXPECT_ERROR(transport.barrier(soon()), PeerError, "on purpose");
    if (i != 0) return;
    EXPECT_EQ(released.get_future().wait_for(std::chrono::seconds(5)), std::future_status::ready);
  });
  for (const auto& end : processes.wait()) {
    EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
  }
}

}  // namespace
}  // namespace stagecraft
