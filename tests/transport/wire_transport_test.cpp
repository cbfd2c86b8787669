// A wire transport and its recoveries, over a communication library that brings what the test says.

#include "stagecraft/transport/wire/wire_transport.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "stagecraft/base/checksum.h"
#include "stagecraft/transport/wire/bytes.h"
#include "stagecraft/transport/wire/frame.h"
#include "stagecraft/transport/wire/packed_value.h"

namespace stagecraft::detail {
namespace {

class ScriptedWork final : public Work {
 public:
  explicit ScriptedWork(bool is_done) : is_done_(is_done) {}
  bool wait() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_done_ || is_interrupted_; });
    is_interrupted_ = false;
    return is_done_;
  }
  void interrupt() override { set(is_interrupted_); }
  void finish() { set(is_done_); }

 private:
  void set(bool& flag) {
    const std::lock_guard lock(mutex_);
    flag = true;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_done_;
  bool is_interrupted_ = false;
};

// The messages between rank 1, which is tested, and rank 0, which the test plays.
class Script {
 public:
  /// Brings a frame from rank 0.
  void bring(FrameHead head, const std::string& body) {
    const std::lock_guard lock(mutex_);
    head.number = num_brought_++;
    head.body_bytes = body.size();
    seal(head);
    brought_.push_back(std::string(reinterpret_cast<const char*>(&head), sizeof(head)) + body);
    deliver();
  }
  std::atomic<bool> is_given_up = false;  ///< rank 1 has given up its transfers with rank 0
  /// Called for each frame that rank 1 sends.
  std::function<void(const FrameHead&)> on_frame;

  WorkPtr post(const at::Tensor& bytes) {
    const std::lock_guard lock(mutex_);
    posted_.push_back({bytes, std::make_shared<ScriptedWork>(/*is_done=*/false)});
    const WorkPtr work = posted_.back().work;
    deliver();
    return work;
  }
  WorkPtr send(const at::Tensor& bytes) {
    FrameHead head;
    std::memcpy(&head, bytes.const_data_ptr(), sizeof(head));
    {
      const std::lock_guard lock(mutex_);
      sent_.push_back(head);
    }
    if (on_frame) on_frame(head);
    return std::make_shared<ScriptedWork>(/*is_done=*/true);
  }
  bool has_sent(FrameKind kind) {
    const std::lock_guard lock(mutex_);
    return std::any_of(sent_.begin(), sent_.end(),
                       [&](const FrameHead& head) { return head.kind == kind; });
  }
  /// The epochs of the aborts that rank 1 has sent.
  std::vector<uint64_t> aborts() {
    const std::lock_guard lock(mutex_);
    std::vector<uint64_t> epochs;
    for (const auto& head : sent_) {
      if (head.kind == FrameKind::kAbort) epochs.push_back(head.epoch);
    }
    return epochs;
  }

 private:
  struct Posted {
    at::Tensor bytes;
    std::shared_ptr<ScriptedWork> work;
  };

  void deliver() {
    while (!brought_.empty() && !posted_.empty()) {
      const std::string& frame = brought_.front();
      std::memcpy(posted_.front().bytes.mutable_data_ptr(), frame.data(), frame.size());
      posted_.front().work->finish();
      brought_.pop_front();
      posted_.pop_front();
    }
  }

  std::mutex mutex_;
  std::deque<std::string> brought_;
  std::deque<Posted> posted_;
  std::vector<FrameHead> sent_;
  uint64_t num_brought_ = 0;
};

class ScriptedByteTransport final : public ByteTransport {
 public:
  explicit ScriptedByteTransport(Script& script) : script_(script) {}

  Rank rank() const override { return Rank(1); }
  int32_t num_ranks() const override { return 2; }
  WorkPtr send(Rank, Tag, const at::Tensor& bytes) override { return script_.send(bytes); }
  WorkPtr receive(Rank, Tag, const at::Tensor& bytes) override { return script_.post(bytes); }
  void forget(Rank) override { script_.is_given_up = true; }

 private:
  Script& script_;
};

TransferId transfer(int32_t microbatch) {
  return {0, Direction::kForward, StageId(0), StageId(1), MicrobatchId(microbatch)};
}

class WireTransportTest : public testing::Test {
 protected:
  // A value whose checksum is wrong.
  void bring_damaged(uint64_t epoch, int32_t microbatch) {
    const auto value = encode(c10::IValue(7));
    const std::string body = value.layout + value.values;
    FrameHead head;
    head.epoch = epoch;
    head.set_transfer(transfer(microbatch));
    head.layout = next_layout_++;
    head.layout_bytes = static_cast<uint32_t>(value.layout.size());
    head.has_checksum = 1;
    head.body_checksum = checksum({reinterpret_cast<const std::byte*>(body.data()), body.size()});
    head.tensor_checksum = 1;
    script_.bring(head, body);
  }

  // Rank 0 answers that both ranks have called `recover`. `before` is called before the answer.
  void recover(const std::function<void()>& before = {}) {
    script_.on_frame = [this, before](const FrameHead& come) {
      if (come.kind != FrameKind::kCome) return;
      if (before) before();
      ByteWriter body;
      body.put(uint64_t{0});
      for (int rank = 0; rank < 2; ++rank) {
        body.put_text("recover");
        body.put_text("");
      }
      FrameHead met;
      met.kind = FrameKind::kMet;
      met.is_recovery = 1;
      met.step = come.step;
      script_.bring(met, body.take());
    };
    transport_.recover(Deadline::after(std::chrono::seconds(20)));
  }

  std::string wait_for_abort() {
    const auto deadline = Deadline::after(std::chrono::seconds(20));
    while (!deadline.has_passed()) {
      if (const auto reason = transport_.abort_reason()) return reason->message;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return "";
  }
  // The reason is visible a moment before it is sent.
  std::vector<uint64_t> wait_for_aborts(std::size_t count) {
    const auto deadline = Deadline::after(std::chrono::seconds(20));
    while (script_.aborts().size() < count && !deadline.has_passed()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return script_.aborts();
  }

  static std::string damaged(int32_t microbatch) {
    return "rank 0: " + to_string(transfer(microbatch)) + " arrived damaged at rank 1";
  }

  Script script_;
  WireTransport transport_{std::make_unique<ScriptedByteTransport>(script_),
                           {.max_silence = {}, .linger = std::chrono::milliseconds(1)}};
  uint32_t next_layout_ = 0;
};

TEST_F(WireTransportTest, ADamagedValueAbortsTheWorld) {
  bring_damaged(/*epoch=*/0, /*microbatch=*/1);
  EXPECT_THAT(wait_for_abort(), testing::StartsWith(damaged(1)));
  EXPECT_THAT(wait_for_aborts(1), testing::ElementsAre(0));
}

TEST_F(WireTransportTest, ADamagedValueOfAnOldEpochIsDropped) {
  recover();
  bring_damaged(/*epoch=*/0, /*microbatch=*/1);
  bring_damaged(/*epoch=*/1, /*microbatch=*/2);
  EXPECT_THAT(wait_for_abort(), testing::StartsWith(damaged(2)));
  EXPECT_THAT(wait_for_aborts(1), testing::ElementsAre(1));
}

// With more than two ranks, the first value from a peer that has recovered may be read before this
// rank's own recovery.
TEST_F(WireTransportTest, ADamagedValueOfTheNextEpochAbortsThatEpoch) {
  recover([this] { bring_damaged(/*epoch=*/1, /*microbatch=*/1); });
  ASSERT_TRUE(transport_.abort_reason());
  EXPECT_THAT(transport_.abort_reason()->message, testing::StartsWith(damaged(1)));
  EXPECT_THAT(wait_for_aborts(1), testing::ElementsAre(1));
  recover();
  EXPECT_FALSE(transport_.abort_reason());
}

// Over a library without connections, nothing but the answer shows that a goodbye was read.
TEST(WireTransportLeaving, APeerThatHasLeftIsNotTold) {
  Script script;
  {
    WireTransport transport(std::make_unique<ScriptedByteTransport>(script),
                            {.max_silence = {}, .linger = std::chrono::seconds(60)});
    FrameHead goodbye;
    goodbye.kind = FrameKind::kGoodbye;
    script.bring(goodbye, "");
    const auto deadline = Deadline::after(std::chrono::seconds(20));
    while (!script.has_sent(FrameKind::kSeen) && !deadline.has_passed()) std::this_thread::yield();
    ASSERT_TRUE(script.has_sent(FrameKind::kSeen));
  }
  EXPECT_FALSE(script.has_sent(FrameKind::kGoodbye));
  EXPECT_FALSE(script.is_given_up);
}

TEST(WireTransportLeaving, ThePeersAnswerEndsTheWait) {
  Script script;
  script.on_frame = [&](const FrameHead& head) {
    if (head.kind != FrameKind::kGoodbye) return;
    FrameHead seen;
    seen.kind = FrameKind::kSeen;
    script.bring(seen, "");
  };
  {
    const WireTransport transport(std::make_unique<ScriptedByteTransport>(script),
                                  {.max_silence = {}, .linger = std::chrono::seconds(60)});
  }
  EXPECT_FALSE(script.is_given_up);
}

}  // namespace
}  // namespace stagecraft::detail
