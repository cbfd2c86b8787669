// How ranks find each other, and who is not admitted.

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>

#include "stagecraft/base/error.h"
#include "stagecraft/transport/gloo/addresses.h"
#include "tests/support/expect_error.h"
#include "tests/support/gloo_ranks.h"
#include "tests/transport/traffic.h"

namespace stagecraft {
namespace {

using Change = std::function<void(JoinOptions&, int32_t rank)>;

sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// How each of these ranks joins, with its options changed.
std::vector<ProcessEnd> join_all(int32_t ranks, const Change& change) {
  const GlooRanks world(ranks);
  Processes processes(ranks, [&](int32_t i) {
    auto options = world.options(i);
    change(options, i);
    const auto joined = join_gloo(options);
    joined->barrier(soon());
  });
  return processes.wait();
}

void expect_all_threw(const std::vector<ProcessEnd>& ends, const std::string& type,
                      const std::string& text) {
  for (std::size_t i = 0; i < ends.size(); ++i) {
    EXPECT_EQ(ends[i].kind, ProcessEnd::Kind::kThrew) << "rank " << i;
    EXPECT_EQ(ends[i].type, type) << "rank " << i << ": " << ends[i].message;
    EXPECT_THAT(ends[i].message, testing::HasSubstr(text)) << "rank " << i;
  }
}

TEST(GlooJoin, WithTheTokenAllAreAdmitted) {
  const auto ends = join_all(3, [](auto& options, int32_t) { options.token = "a secret"; });
  for (const auto& end : ends) EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
}

TEST(GlooJoin, WithoutTheTokenARankIsToldSoAndTheOthersSayWhoIsMissing) {
  for (const std::string token : {"", "another"}) {
    const auto ends = join_all(2, [&](auto& options, int32_t rank) {
      options.join_timeout = std::chrono::seconds(4);
      options.token = rank == 0 ? "a secret" : token;
    });
    EXPECT_EQ(ends[1].type, "ArgumentError");
    EXPECT_THAT(ends[1].message, testing::HasSubstr("the job at 127.0.0.1:"));
    EXPECT_THAT(ends[1].message, testing::HasSubstr("refused rank 1: its token differs"));
    EXPECT_EQ(ends[0].type, "TimeoutError");
    EXPECT_THAT(ends[0].message, testing::HasSubstr("rank 1 at 127.0.0.1:"));
    EXPECT_THAT(ends[0].message,
                testing::HasSubstr("a process without the job's token asked to be rank 1"));
    EXPECT_LT(ends[0].seconds, 30);
  }
}

TEST(GlooJoin, AnotherVersionIsAnErrorOnAllThatNamesTheRank) {
  expect_all_threw(join_all(3,
                            [](auto& options, int32_t rank) {
                              if (rank == 1) options.fingerprint = {{"version", "0.0.1"}};
                            }),
                   "MetadataError", ", 0.0.1 on rank 1");
}

TEST(GlooJoin, TheWireProtocolIsCompared) {
  expect_all_threw(join_all(2,
                            [](auto& options, int32_t rank) {
                              if (rank == 1) options.fingerprint = {{"wire protocol", "SCW1"}};
                            }),
                   "MetadataError", "wire protocol is SCW3 on rank 0, SCW1 on rank 1");
}

TEST(GlooJoin, WhatTheProgramWantsAgreedOnIsComparedToo) {
  expect_all_threw(
      join_all(
          2,
          [](auto& options, int32_t rank) {
            options.fingerprint = {{"schedule", rank == 0 ? "1F1B" : "GPipe"}, {"stages", "4"}};
          }),
      "MetadataError", "the ranks do not agree: schedule is 1F1B on rank 0, GPipe on rank 1");
}

TEST(GlooJoin, AnotherNumberOfRanksIsAnErrorOnAll) {
  expect_all_threw(join_all(2,
                            [](auto& options, int32_t rank) {
                              if (rank == 1) options.num_ranks = 3;
                            }),
                   "MetadataError", "number of ranks is 2 on rank 0, 3 on rank 1");
}

TEST(GlooJoin, ARankThatDoesNotComeIsNamed) {
  const auto ends = join_all(3, [](auto& options, int32_t rank) {
    options.join_timeout = std::chrono::seconds(4);
    if (rank == 2) _exit(1);
  });
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(ends[i].type, "TimeoutError") << ends[i].message;
    EXPECT_THAT(ends[i].message, testing::HasSubstr(" s for rank 2 at 127.0.0.1:"));
    EXPECT_LT(ends[i].seconds, 30);
  }
}

// In the middle of joining, so that the other rank waits for an answer of its store.
TEST(GlooJoin, AKeeperOfTheStoreThatStopsIsNoHang) {
  const GlooRanks world(3);
  Processes processes(2, [&](int32_t i) {
    auto options = world.options(i);  // rank 2 never comes
    options.join_timeout = std::chrono::seconds(i == 0 ? 50 : 4);
    Processes::tell_parent();
    const auto joined = join_gloo(options);
  });
  for (const int32_t i : {0, 1}) processes.wait_for_word(i);
  std::this_thread::sleep_for(std::chrono::seconds(1));
  processes.signal(0, SIGSTOP);
  const auto ends = processes.wait({0});
  EXPECT_EQ(ends[1].type, "TimeoutError") << ends[1].message;
  EXPECT_THAT(ends[1].message, testing::HasSubstr("rank 1 waited 4.0 s for "));
  EXPECT_LT(ends[1].seconds, 30);
}

TEST(GlooJoin, AStoreThatIsNotThereIsNamed) {
  // The socket is bound, so that no other process gets the port, but it does not listen.
  const detail::Socket bound(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(0);
  ASSERT_EQ(bind(bound.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  const auto port = detail::port_of(bound);
  Processes processes(1, [&](int32_t) {
    JoinOptions options;
    options.rank = Rank(1);
    options.num_ranks = 2;
    options.port = port;
    options.join_timeout = std::chrono::seconds(4);
    EXPECT_ERROR(join_gloo(options), TimeoutError,
                 "rank 1 waited 4.0 s for the store at 127.0.0.1:" + std::to_string(port));
  });
  EXPECT_EQ(processes.wait()[0].kind, ProcessEnd::Kind::kReturned);
}

TEST(GlooJoin, ASecondProcessOfOneRankIsTold) {
  const GlooRanks world(2);
  Processes processes(3, [&](int32_t i) {
    auto options = world.options(i == 2 ? 1 : i);
    if (i == 2) raise(SIGSTOP);
    const auto joined = join_gloo(options);
    joined->barrier(soon());
    Processes::tell_parent();
    pause();
  });
  processes.wait_for_word(0);
  processes.wait_for_word(1);
  int status = 0;
  waitpid(processes.pid(2), &status, WUNTRACED);
  EXPECT_TRUE(WIFSTOPPED(status));
  processes.signal(2, SIGCONT);
  const auto ends = processes.wait({0, 1});
  EXPECT_EQ(ends[2].type, "ArgumentError") << ends[2].message;
  EXPECT_THAT(ends[2].message, testing::HasSubstr("rank 1 of the job at 127.0.0.1:"));
  EXPECT_THAT(ends[2].message, testing::HasSubstr("has already joined from a different process"));
}

// Not of the job: connects and says nothing, or says something else.
TEST(GlooJoin, WhoConnectsAndSaysNothingDisturbsNobody) {
  const GlooRanks world(2);
  Processes strangers(2, [&](int32_t i) {
    const detail::Socket client(socket(AF_INET, SOCK_STREAM, 0));
    const sockaddr_in address = loopback(world.options(1).port);
    EXPECT_EQ(connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
              0);
    const std::string words = i == 0 ? "" : "GET / HTTP/1.1\r\n\r\n";
    EXPECT_EQ(write(client.get(), words.data(), words.size()), static_cast<ssize_t>(words.size()));
    Processes::tell_parent();
    pause();
  });
  strangers.wait_for_word(0);
  strangers.wait_for_word(1);
  Processes processes(2, [&](int32_t i) {
    const auto joined = join_gloo(world.options(i));
    joined->barrier(soon());
  });
  for (const auto& end : processes.wait()) {
    EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
    EXPECT_LT(end.seconds, 30);
  }
}

TEST(GlooJoin, ARankThatCannotConnectIsAnErrorOnAll) {
  const auto ends = join_all(2, [](auto& options, int32_t rank) {
    options.join_timeout = std::chrono::seconds(5);
    options.token = "a secret";
    if (rank == 1) options.address = "192.0.2.1";
  });
  EXPECT_EQ(ends[0].type, "TimeoutError") << ends[0].message;
  EXPECT_THAT(ends[0].message, testing::HasSubstr("rank 0 waited 5.0 s for rank 1 to connect"));
  EXPECT_EQ(ends[1].type, "ArgumentError") << ends[1].message;
  EXPECT_THAT(ends[1].message, testing::HasSubstr("192.0.2.1 is not an address of this machine"));
}

TEST(GlooJoin, AListenerThatSaysNothingIsNoStore) {
  const auto listener = detail::listen_on("127.0.0.1", 0);
  const auto port = detail::port_of(listener);
  Processes processes(1, [&](int32_t) {
    JoinOptions options;
    options.rank = Rank(1);
    options.num_ranks = 2;
    options.port = port;
    options.join_timeout = std::chrono::seconds(2);
    EXPECT_ERROR(join_gloo(options), TimeoutError,
                 "rank 1 waited 2.0 s for the store at 127.0.0.1:" + std::to_string(port));
  });
  const auto end = processes.wait()[0];
  EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned);
  EXPECT_LT(end.seconds, 30);
}

// A world that came to nothing on one rank only does not keep the next from being made.
TEST(GlooJoin, OneThatFailedOnOneRankLeavesNothingForTheNext) {
  const GlooRanks world(2);
  Processes processes(2, [&](int32_t i) {
    auto options = world.options(i);
    if (i == 1) {
      auto other = options;
      other.token = "another";
      EXPECT_ERROR(join_gloo(other), ArgumentError, "its token differs");
    }
    const auto joined = join_gloo(options);
    joined->barrier(soon());
  });
  for (const auto& end : processes.wait()) {
    EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
  }
}

TEST(GlooJoin, WhateverListensWhereOthersReachItNeedsAToken) {
  const auto refused = [](const Change& change) {
    JoinOptions options;
    options.num_ranks = 2;
    change(options, 0);
    EXPECT_ERROR(join_gloo(options), ArgumentError, "a token is required (STAGECRAFT_TOKEN)");
  };
  refused([](auto& options, int32_t) { options.listen = "0.0.0.0"; });
  refused([](auto& options, int32_t) { options.address = "192.0.2.1"; });
  const auto listener = detail::listen_on("0.0.0.0", 0);
  refused([&](auto& options, int32_t) { options.listen_fd = listener.get(); });
}

TEST(GlooJoin, OtherMachinesNeedATokenAndAnAddressToListenOn) {
  JoinOptions options;
  options.host = "192.0.2.1";
  options.num_ranks = 2;
  EXPECT_ERROR(join_gloo(options), ArgumentError, "a token is required (STAGECRAFT_TOKEN)");
  options.token = "a secret";
  EXPECT_ERROR(join_gloo(options), ArgumentError,
               "the store listens on 127.0.0.1 only: set the address to listen on");
  options.rank = Rank(2);
  EXPECT_ERROR(join_gloo(options), ArgumentError, "there is no rank 2 among 2 ranks");
}

TEST(GlooJoin, TheEnvironmentOfTorchrunIsUnderstood) {
  Processes processes(1, [](int32_t) {
    EXPECT_ERROR(JoinOptions::from_environment(), ArgumentError, "RANK is not set");
    setenv("RANK", "1", 1);
    setenv("WORLD_SIZE", "x4", 1);
    EXPECT_ERROR(JoinOptions::from_environment(), ArgumentError,
                 "WORLD_SIZE=\"x4\": expected a number");
    setenv("WORLD_SIZE", "4", 1);
    setenv("LOCAL_RANK", "3", 1);
    EXPECT_ERROR(JoinOptions::from_environment(), ArgumentError, "MASTER_ADDR is not set");
    setenv("MASTER_ADDR", "localhost", 1);
    setenv("MASTER_PORT", "70000", 1);
    EXPECT_ERROR(JoinOptions::from_environment(), ArgumentError, "MASTER_PORT=\"70000\"");
    setenv("MASTER_PORT", "29511", 1);
    setenv("STAGECRAFT_TOKEN", "a secret", 1);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    const auto options = JoinOptions::from_environment();
    EXPECT_EQ(options.rank, Rank(1));
    EXPECT_EQ(options.num_ranks, 4);
    EXPECT_EQ(options.local_rank, 3);
    EXPECT_EQ(options.host, "localhost");
    EXPECT_EQ(options.port, 29511);
    EXPECT_EQ(options.token, "a secret");
    EXPECT_TRUE(options.store_is_elsewhere);
  });
  EXPECT_EQ(processes.wait()[0].kind, ProcessEnd::Kind::kReturned);
}

}  // namespace
}  // namespace stagecraft
