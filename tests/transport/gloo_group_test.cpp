// A world over a group of c10d that the program has made itself.

#include "stagecraft/transport/gloo/gloo_group.h"

#include <csignal>
#include <exception>
#include <filesystem>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "stagecraft/base/error.h"
#include "stagecraft/transport/gloo/join_gloo.h"
#include "tests/support/expect_error.h"
#include "tests/support/processes.h"

namespace stagecraft {
namespace {

class OtherWork final : public c10d::Work {
 public:
  explicit OtherWork(c10::intrusive_ptr<c10d::Work> inner)
      : inner_(std::move(inner)), thread_([this] {
          try {
            inner_->wait(std::chrono::hours(1));
            finish();
          } catch (...) {
            finish(std::current_exception());
          }
        }) {}
  // What was posted and never came.
  ~OtherWork() override {
    inner_->abort();
    thread_.join();
  }

 private:
  c10::intrusive_ptr<c10d::Work> inner_;
  std::thread thread_;
};

/// Moves bytes as gloo does, but its waits cannot be interrupted, as those of gloo can.
class OtherBackend final : public c10d::Backend {
 public:
  OtherBackend(c10::intrusive_ptr<c10d::Backend> inner, int rank)
      : Backend(rank, 2), inner_(std::move(inner)) {}
  const std::string getBackendName() const override { return "other"; }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    return c10::make_intrusive<OtherWork>(inner_->send(tensors, to, tag));
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from,
                                      int tag) override {
    return c10::make_intrusive<OtherWork>(inner_->recv(tensors, from, tag));
  }

 private:
  c10::intrusive_ptr<c10d::Backend> inner_;
};

class HandedIn : public testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(, HandedIn, testing::Bool(),
                         [](const auto& is_gloo) { return is_gloo.param ? "gloo" : "other"; });

TEST_P(HandedIn, AGroupCarriesAWorld) {
  const auto path =
      std::filesystem::temp_directory_path() / ("stagecraft_store_" + std::to_string(getpid()));
  Processes processes(2, [&](int32_t i) {
    std::signal(SIGPIPE, SIG_IGN);
    const auto store = c10::make_intrusive<c10d::FileStore>(path.string(), 2);
    const auto group = c10::make_intrusive<c10d::ProcessGroup>(store, i, 2);
    const auto gloo =
        detail::make_gloo_group(store, Rank(i), 2, "127.0.0.1", std::chrono::seconds(20));
    using Type = c10d::ProcessGroup::BackendType;
    if (GetParam()) {
      group->setBackend(c10::DeviceType::CPU, Type::GLOO, gloo);
    } else {
      group->setBackend(c10::DeviceType::CPU, Type::CUSTOM,
                        c10::make_intrusive<OtherBackend>(gloo, i));
    }
    const auto transport = join_gloo(group);
    EXPECT_EQ(transport->rank(), Rank(i));
    EXPECT_EQ(transport->num_ranks(), 2);
    const auto soon = Deadline::after(std::chrono::seconds(20));
    for (int32_t m = 0; m < 5; ++m) {
      const TransferId id{0, Direction::kForward, StageId(0), StageId(1), MicrobatchId(m)};
      const auto value = [m](int32_t rank) { return at::full({m * 25000}, rank + 10 * m); };
      const auto sent = transport->post_send(Rank(1 - i), id, value(i));
      const auto receive = transport->post_receive(Rank(1 - i), id);
      const auto got = transport->wait_receive(receive, soon).value.toTensor();
      EXPECT_TRUE(at::equal(got, value(1 - i)));
      transport->wait_send(sent, soon);
    }
    transport->barrier(soon);
  });
  for (const auto& end : processes.wait()) {
    EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
  }
  std::filesystem::remove(path);
}

// Two worlds at one store, one after the other, beside what else the program keeps there.
TEST(GlooAtAStore, ProcessesJoinAtTheirOwnStore) {
  const auto path =
      std::filesystem::temp_directory_path() / ("stagecraft_own_" + std::to_string(getpid()));
  Processes processes(2, [&](int32_t i) {
    const auto store = c10::make_intrusive<c10d::FileStore>(path.string(), 2);
    store->set("salt", {1, 2, 3});
    for (const char* const job : {"first", "second"}) {
      JoinOptions options;
      options.rank = Rank(i);
      options.num_ranks = 2;
      options.address = "127.0.0.1";
      options.job = job;
      options.join_timeout = std::chrono::seconds(20);
      const c10::intrusive_ptr<c10d::Store> given = store;
      const auto transport = join_gloo(given, options);
      const auto all = transport->all_gather(int64_t{i}, Deadline::after(std::chrono::seconds(20)));
      ASSERT_EQ(all.size(), 2U);
      EXPECT_EQ(all[0].toInt(), 0);
      EXPECT_EQ(all[1].toInt(), 1);
    }
  });
  for (const auto& end : processes.wait()) {
    EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
  }
  std::filesystem::remove(path);
}

TEST(GlooGroup, OneWithoutABackendForTheCpuIsRefused) {
  const auto path =
      std::filesystem::temp_directory_path() / ("stagecraft_other_" + std::to_string(getpid()));
  Processes processes(1, [&](int32_t) {
    const auto store = c10::make_intrusive<c10d::FileStore>(path.string(), 1);
    const auto group = c10::make_intrusive<c10d::ProcessGroup>(store, 0, 1);
    EXPECT_ERROR(join_gloo(group), ArgumentError, "got one without");
  });
  EXPECT_EQ(processes.wait()[0].kind, ProcessEnd::Kind::kReturned);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace stagecraft
