// The sending end of a stream of frames, over a communication library that only counts.

#include "stagecraft/transport/wire/outbox.h"

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include <ATen/ops/ones.h>

#include "stagecraft/base/deadline.h"

namespace stagecraft::detail {
namespace {

// How many sends were posted, and how many of them a thread has waited for.
struct Counts {
  std::atomic<int> posted{0};
  std::atomic<int> waited{0};
};

class CountedWork final : public Work {
 public:
  explicit CountedWork(Counts& counts) : counts_(counts) {}
  bool wait() override {
    ++counts_.waited;
    return true;
  }
  void interrupt() override {}

 private:
  Counts& counts_;
};

class CountingByteTransport final : public ByteTransport {
 public:
  explicit CountingByteTransport(Counts& counts) : counts_(counts) {}
  Rank rank() const override { return Rank(0); }
  int32_t num_ranks() const override { return 2; }
  WorkPtr send(Rank, Tag, const at::Tensor&) override {
    ++counts_.posted;
    return std::make_shared<CountedWork>(counts_);
  }
  WorkPtr receive(Rank, Tag, const at::Tensor&) override {
    return std::make_shared<CountedWork>(counts_);
  }

 private:
  Counts& counts_;
};

bool has_thread(const std::string& name) {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string line;
    std::getline(std::ifstream(task.path() / "comm"), line);
    if (line == name) return true;
  }
  return false;
}

class OutboxTest : public testing::Test {
 protected:
  void tick() { outbox_.tick(/*epoch=*/0, "here", /*frames_read=*/0); }
  void send(int64_t bytes) {
    FrameHead head;
    head.set_transfer({0, Direction::kForward, StageId(0), StageId(1), MicrobatchId(0)});
    outbox_.send_value(head, encode(at::ones({bytes}, at::kByte)));
  }
  // A thread gets its name a moment after it was started.
  static bool gets_thread(const std::string& name) {
    const auto deadline = Deadline::after(std::chrono::seconds(20));
    while (!has_thread(name) && !deadline.has_passed()) std::this_thread::yield();
    return has_thread(name);
  }

  Counts counts_;
  CountingByteTransport byte_transport_{counts_};
  Outbox outbox_{byte_transport_,         nullptr, Rank(1),
                 /*use_checksums=*/false, [] {},   [](const FrameHead&, const std::string&) {}};
};

TEST_F(OutboxTest, HeartbeatsThatThePeerHasReadNeedNoThread) {
  for (int i = 1; i <= 40; ++i) {
    tick();
    EXPECT_EQ(counts_.posted, i);
    // Only what was read is waited for: a wait for the rest could last.
    EXPECT_EQ(counts_.waited, i - 1);
    outbox_.on_read(static_cast<uint64_t>(i));
  }
  EXPECT_FALSE(has_thread("sc out 1"));
}

TEST_F(OutboxTest, APeerCannotHaveReadMoreThanWasSent) {
  outbox_.on_read(1000);
  tick();
  tick();
  EXPECT_EQ(counts_.waited, 0);
}

TEST_F(OutboxTest, FramesThatPileUpGetAThread) {
  for (int i = 0; i < 20; ++i) tick();
  EXPECT_TRUE(gets_thread("sc out 1"));
}

TEST_F(OutboxTest, AFrameIsSentOnlyIfItsConditionHolds) {
  EXPECT_FALSE(outbox_.send_if([] { return false; }, FrameHead()));
  EXPECT_EQ(counts_.posted, 0);
  EXPECT_TRUE(outbox_.send_if([] { return true; }, FrameHead()));
  EXPECT_EQ(counts_.posted, 1);
}

TEST_F(OutboxTest, NoFrameIsPostedBetweenAConditionAndItsFrame) {
  std::thread other;
  const auto condition = [&] {
    std::promise<void> begins;
    auto has_begun = begins.get_future();
    other = std::thread([this, begins = std::move(begins)]() mutable {
      begins.set_value();
      outbox_.send(FrameHead());
    });
    has_begun.wait();
    // Enough for the other thread to post its frame if it need not wait.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(counts_.posted, 0);
    return true;
  };
  EXPECT_TRUE(outbox_.send_if(condition, FrameHead()));
  other.join();
  EXPECT_EQ(counts_.posted, 2);
}

TEST_F(OutboxTest, AValueWithAMessageOfItsOwnGetsAThread) {
  send(1000);
  EXPECT_FALSE(has_thread("sc out 1"));
  send(100'000);
  EXPECT_TRUE(gets_thread("sc out 1"));
}

}  // namespace
}  // namespace stagecraft::detail
