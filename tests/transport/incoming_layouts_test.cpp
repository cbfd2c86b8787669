// Layouts and memory of incoming values, over a communication library that only counts.

#include "stagecraft/transport/wire/incoming_layouts.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include "stagecraft/base/error.h"
#include "tests/support/expect_error.h"

namespace stagecraft::detail {
namespace {

class NamedWork final : public Work {
 public:
  bool wait() override { return true; }
  void interrupt() override {}
};

struct PostedReceive {
  Rank from;
  ByteTransport::Tag tag = 0;
  at::Tensor bytes;
  WorkPtr work;
};

class ReceivingByteTransport final : public ByteTransport {
 public:
  Rank rank() const override { return Rank(0); }
  int32_t num_ranks() const override { return 2; }
  WorkPtr send(Rank, Tag, const at::Tensor&) override {
    ADD_FAILURE() << "a receiver sends nothing";
    return nullptr;
  }
  WorkPtr receive(Rank from, Tag tag, const at::Tensor& bytes) override {
    posted.push_back({from, tag, bytes, std::make_shared<NamedWork>()});
    return posted.back().work;
  }

  std::vector<PostedReceive> posted;
};

// A link for tensors of the CPU.
class ReceivingLink final : public DeviceLink {
 public:
  struct Posted {
    Rank from;
    uint64_t epoch = 0;
    int64_t bytes = 0;
  };

  c10::Device device() const override { return c10::kCPU; }
  void receive(Rank from, uint64_t epoch, const at::Tensor& bytes) override {
    posted.push_back({from, epoch, bytes.numel()});
  }

  bool open(Rank, uint64_t, const std::function<bool()>&) override { return true; }
  void accept(Rank, uint64_t, std::string_view) override {}
  bool connect(Rank, uint64_t, const std::function<bool()>&) override { return true; }
  WorkPtr send(Rank, uint64_t, const at::Tensor&) override { return nullptr; }
  void attach(LinkedWorld&) override {}
  void begin_epoch(Deadline) override {}
  void settle(Deadline) override {}
  void on_tick() override {}
  void cancel(uint64_t) override {}
  void abort() override {}
  void close(std::chrono::nanoseconds) override {}

  std::vector<Posted> posted;
};

// Too large for a frame.
constexpr int64_t kLargeBytes = 100'000;
static_assert(kLargeBytes > static_cast<int64_t>(kMaxSmall));

EncodedValue large() {
  return encode(at::ones({kLargeBytes}, at::kByte));
}
EncodedValue larger() {
  return encode(at::ones({2 * kLargeBytes}, at::kByte));
}

// Values of stage 0 for stage 1.
TransferId values(int32_t microbatch) {
  return {0, Direction::kForward, StageId(0), StageId(1), MicrobatchId(microbatch)};
}
TransferId grads(int32_t microbatch) {
  return {0, Direction::kBackward, StageId(1), StageId(0), MicrobatchId(microbatch)};
}

FrameHead frame(uint32_t layout, const TransferId& id, std::size_t bytes, uint64_t epoch = 0) {
  FrameHead head;
  head.set_transfer(id);
  head.layout = layout;
  head.tensor_bytes = bytes;
  head.epoch = epoch;
  return head;
}
FrameHead large_frame(const TransferId& id, uint64_t epoch = 0) {
  return frame(0, id, kLargeBytes, epoch);
}

class IncomingLayoutsTest : public testing::Test {
 protected:
  // Two values of the large layout, so that the edge repeats.
  void repeat() {
    layouts_.learn(0, Edge::of(values(0)), large().layout);
    for (const int32_t m : {0, 1}) {
      layouts_.expect(values(m), 0);
      layouts_.take(large_frame(values(m)));
    }
    byte_transport_.posted.clear();
  }
  // The values of the next microbatch have a different layout. Returns the request to release the
  // memory of the large layout.
  FrameHead change_layout(int32_t microbatch) {
    layouts_.learn(1, Edge::of(values(0)), larger().layout);
    const auto taken = layouts_.take(frame(1, values(microbatch), 2 * kLargeBytes));
    EXPECT_TRUE(taken.release.has_value());
    return taken.release.value_or(FrameHead());
  }
  static FrameHead answer(FrameHead release) {
    release.kind = FrameKind::kReleased;
    return release;
  }

  ReceivingByteTransport byte_transport_;
  IncomingLayouts layouts_{byte_transport_, nullptr, Rank(1)};
};

TEST_F(IncomingLayoutsTest, AFrameGetsMemoryForItsTensors) {
  layouts_.learn(5, Edge::of(values(0)), large().layout);
  layouts_.expect(values(0), 0);
  EXPECT_TRUE(byte_transport_.posted.empty());
  const auto taken = layouts_.take(frame(5, values(0), kLargeBytes));
  ASSERT_EQ(byte_transport_.posted.size(), 1U);
  const auto& posted = byte_transport_.posted.front();
  EXPECT_EQ(posted.from, Rank(1));
  EXPECT_EQ(posted.tag, tag_of(5));
  EXPECT_EQ(posted.bytes.numel(), kLargeBytes);
  EXPECT_EQ(taken.memory.works, std::vector{posted.work});
  ASSERT_EQ(taken.memory.tensors.size(), 1U);
  EXPECT_TRUE(taken.memory.tensors[0].bytes().is_same(posted.bytes));
  EXPECT_FALSE(taken.release.has_value());
  EXPECT_EQ(taken.layout->parts().size(), 1U);
}

TEST_F(IncomingLayoutsTest, MemoryIsPostedAheadOnceALayoutRepeats) {
  layouts_.learn(0, Edge::of(values(0)), large().layout);
  layouts_.expect(values(0), 0);
  layouts_.take(large_frame(values(0)));
  layouts_.expect(values(1), 0);
  EXPECT_EQ(layouts_.num_posted(), 0U) << "it has come once";
  layouts_.take(large_frame(values(1)));
  byte_transport_.posted.clear();

  layouts_.expect(values(2), 0);
  layouts_.expect(values(3), 0);
  EXPECT_EQ(layouts_.num_posted(), 2U);
  ASSERT_EQ(byte_transport_.posted.size(), 2U);
  // In the order of the frames, since messages of one tag are.
  for (const int32_t m : {2, 3}) {
    const auto taken = layouts_.take(large_frame(values(m)));
    EXPECT_EQ(taken.memory.works,
              std::vector{byte_transport_.posted[static_cast<std::size_t>(m - 2)].work});
  }
  EXPECT_EQ(layouts_.num_posted(), 0U);
  EXPECT_EQ(byte_transport_.posted.size(), 2U);
}

TEST_F(IncomingLayoutsTest, EveryTensorOfAValueHasItsOwnMessage) {
  const auto value = encode(
      c10::ivalue::Tuple::create({at::ones({kLargeBytes}, at::kByte), at::ones({10}, at::kByte),
                                  at::ones({2 * kLargeBytes}, at::kByte)}));
  layouts_.learn(0, Edge::of(values(0)), value.layout);
  const auto taken = layouts_.take(frame(0, values(0), 3 * kLargeBytes));
  EXPECT_EQ(taken.memory.works.size(), 2U);
  ASSERT_EQ(taken.memory.tensors.size(), 3U);
  ASSERT_EQ(byte_transport_.posted.size(), 2U);
  EXPECT_TRUE(byte_transport_.posted[0].bytes.is_same(taken.memory.tensors[0].bytes()));
  EXPECT_TRUE(byte_transport_.posted[1].bytes.is_same(taken.memory.tensors[2].bytes()));
}

TEST_F(IncomingLayoutsTest, NothingIsPostedForTensorsInsideTheFrame) {
  layouts_.learn(0, Edge::of(values(0)), encode(at::ones({10}, at::kByte)).layout);
  for (const int32_t m : {0, 1, 2, 3}) {
    layouts_.expect(values(m), 0);
    const auto taken = layouts_.take(frame(0, values(m), 0));
    EXPECT_TRUE(taken.memory.works.empty());
    ASSERT_EQ(taken.memory.tensors.size(), 1U);
    EXPECT_EQ(taken.memory.tensors[0].bytes().numel(), 10);
  }
  layouts_.expect(values(4), 0);
  EXPECT_EQ(layouts_.num_posted(), 0U);
  EXPECT_TRUE(byte_transport_.posted.empty());
}

TEST_F(IncomingLayoutsTest, EdgesAreSeparate) {
  repeat();
  layouts_.expect(grads(0), 0);
  EXPECT_EQ(layouts_.num_posted(), 0U);
  layouts_.learn(1, Edge::of(grads(0)), larger().layout);
  const auto taken = layouts_.take(frame(1, grads(0), 2 * kLargeBytes));
  EXPECT_FALSE(taken.release.has_value());
  layouts_.expect(values(2), 0);
  ASSERT_EQ(layouts_.num_posted(), 1U);
  EXPECT_EQ(byte_transport_.posted.back().tag, tag_of(0));
}

TEST_F(IncomingLayoutsTest, NothingIsPostedForAFrameThatCameBeforeItsReceive) {
  repeat();
  layouts_.take(large_frame(values(2)));
  layouts_.expect(values(2), 0);
  EXPECT_EQ(layouts_.num_posted(), 0U);
  layouts_.expect(values(3), 0);
  EXPECT_EQ(layouts_.num_posted(), 1U);
}

TEST_F(IncomingLayoutsTest, ARecoveryForgetsReceivesAndKeepsTheMemory) {
  repeat();
  layouts_.expect(values(2), 0);
  layouts_.expect(values(3), 0);
  ASSERT_EQ(layouts_.num_posted(), 2U);
  layouts_.expect_nothing(1);
  EXPECT_EQ(layouts_.num_posted(), 2U);
  // The posted memory serves the next receives.
  layouts_.expect(values(4), 1);
  layouts_.expect(values(5), 1);
  EXPECT_EQ(layouts_.num_posted(), 2U);
  layouts_.expect(values(6), 1);
  EXPECT_EQ(layouts_.num_posted(), 3U);
}

TEST_F(IncomingLayoutsTest, AFrameFromBeforeARecoveryIsNotTheOneThatIsExpectedAfterIt) {
  repeat();
  layouts_.take(large_frame(values(2), /*epoch=*/0));
  layouts_.expect_nothing(1);
  layouts_.expect(values(2), 1);
  EXPECT_EQ(layouts_.num_posted(), 1U);
  // This frame arrives after the recovery.
  layouts_.expect_nothing(2);
  layouts_.take(large_frame(values(3), /*epoch=*/1));
  EXPECT_EQ(layouts_.num_posted(), 0U);
  layouts_.expect(values(3), 2);
  EXPECT_EQ(layouts_.num_posted(), 1U);
}

TEST_F(IncomingLayoutsTest, AFrameFromBeforeARecoveryIsForgottenAtOnce) {
  repeat();
  layouts_.expect_nothing(1);
  layouts_.take(large_frame(values(2), /*epoch=*/0));
  EXPECT_EQ(layouts_.num_early(), 0U);
  layouts_.take(large_frame(values(3), /*epoch=*/1));
  layouts_.take(large_frame(values(4), /*epoch=*/2));
  EXPECT_EQ(layouts_.num_early(), 2U);
  layouts_.expect(values(3), 1);
  EXPECT_EQ(layouts_.num_early(), 1U);
}

TEST_F(IncomingLayoutsTest, AFrameOfADifferentEpochDoesNotAnswerAReceive) {
  repeat();
  layouts_.expect_nothing(1);
  layouts_.expect(values(2), 1);
  layouts_.expect(values(3), 1);
  ASSERT_EQ(layouts_.num_posted(), 2U);
  layouts_.take(large_frame(values(2), /*epoch=*/0));
  EXPECT_EQ(layouts_.num_posted(), 1U);
  // The values of three receives are still to come.
  layouts_.expect(values(4), 1);
  EXPECT_EQ(layouts_.num_posted(), 3U);
  // The peer recovered before this rank.
  layouts_.take(large_frame(values(2), /*epoch=*/2));
  layouts_.expect_nothing(2);
  layouts_.expect(values(2), 2);
  layouts_.expect(values(3), 2);
  EXPECT_EQ(layouts_.num_posted(), 2U);
  layouts_.expect(values(4), 2);
  layouts_.expect(values(5), 2);
  EXPECT_EQ(layouts_.num_posted(), 3U);
}

TEST_F(IncomingLayoutsTest, ARecoveryKeepsFramesThatHaveComeAfterIt) {
  repeat();
  // The peer recovers first.
  layouts_.take(large_frame(values(2), /*epoch=*/1));
  layouts_.expect_nothing(1);
  layouts_.expect(values(2), 1);
  EXPECT_EQ(layouts_.num_posted(), 0U);
}

TEST_F(IncomingLayoutsTest, AChangeOfLayoutReleasesMemoryThatIsPostedForTheOldOne) {
  repeat();
  for (const int32_t m : {2, 3, 4}) layouts_.expect(values(m), 0);
  const auto posted = byte_transport_.posted;
  ASSERT_EQ(posted.size(), 3U);
  const FrameHead release = change_layout(2);
  EXPECT_EQ(release.kind, FrameKind::kRelease);
  EXPECT_EQ(release.layout, 0U);
  EXPECT_EQ(release.count, 3U);
  EXPECT_EQ(release.parts, 1U);
  // Until the peer has answered, it may still fill the memory.
  EXPECT_EQ(layouts_.num_posted(), 3U);
  EXPECT_EQ(layouts_.take_back(answer(release)),
            (std::vector{posted[0].work, posted[1].work, posted[2].work}));
  EXPECT_EQ(layouts_.num_posted(), 0U);
}

TEST_F(IncomingLayoutsTest, AChangeOfLayoutReleasesNothingIfNothingIsPosted) {
  repeat();
  layouts_.learn(1, Edge::of(values(0)), larger().layout);
  EXPECT_FALSE(layouts_.take(frame(1, values(2), 2 * kLargeBytes)).release.has_value());
}

TEST_F(IncomingLayoutsTest, AReceiveOfOneByteReplacesReleasedMemoryThatAValueHasUsed) {
  repeat();
  layouts_.expect(values(2), 0);
  const FrameHead release = change_layout(2);
  const WorkPtr work = byte_transport_.posted.front().work;
  // The peer has sent this value before it read the request.
  EXPECT_EQ(layouts_.take(large_frame(values(3))).memory.works, std::vector{work});
  byte_transport_.posted.clear();
  const auto works = layouts_.take_back(answer(release));
  ASSERT_EQ(byte_transport_.posted.size(), 1U);
  EXPECT_EQ(byte_transport_.posted[0].tag, tag_of(0));
  EXPECT_EQ(byte_transport_.posted[0].bytes.numel(), 1);
  EXPECT_EQ(works, std::vector{byte_transport_.posted[0].work});
}

TEST_F(IncomingLayoutsTest, MemoryThatIsBeingReleasedIsNotCountedAsPostedAhead) {
  repeat();
  layouts_.expect(values(2), 0);
  const FrameHead release = change_layout(2);
  for (const int32_t m : {3, 4}) layouts_.take(large_frame(values(m)));
  byte_transport_.posted.clear();
  layouts_.expect(values(5), 0);
  // One message of a byte, and the value.
  EXPECT_EQ(layouts_.num_posted(), 2U);
  layouts_.take_back(answer(release));
  EXPECT_EQ(layouts_.num_posted(), 1U);
}

TEST_F(IncomingLayoutsTest, ForgetsLayoutsBelowANumber) {
  layouts_.learn(0, Edge::of(values(0)), large().layout);
  layouts_.learn(1, Edge::of(values(0)), larger().layout);
  EXPECT_TRUE(layouts_.forget_below(1).empty());
  EXPECT_ERROR(layouts_.take(large_frame(values(0))), MetadataError,
               "a frame refers to layout 0, which was not sent");
  layouts_.take(frame(1, values(0), 2 * kLargeBytes));
  // Its number may be used again.
  layouts_.learn(0, Edge::of(values(0)), large().layout);
}

TEST_F(IncomingLayoutsTest, ForgetsALayoutAfterItsMemoryIsReleased) {
  repeat();
  layouts_.expect(values(2), 0);
  const auto releases = layouts_.forget_below(1);
  ASSERT_EQ(releases.size(), 1U);
  EXPECT_EQ(releases[0].kind, FrameKind::kRelease);
  EXPECT_EQ(releases[0].layout, 0U);
  EXPECT_EQ(releases[0].count, 1U);
  EXPECT_TRUE(layouts_.forget_below(1).empty()) << "asked twice";
  EXPECT_EQ(layouts_.take_back(answer(releases[0])).size(), 1U);
  EXPECT_TRUE(layouts_.forget_below(1).empty());
  EXPECT_THROW(layouts_.take(large_frame(values(2))), MetadataError);
}

TEST_F(IncomingLayoutsTest, RefusesFramesThatDoNotFitTheirLayout) {
  layouts_.learn(0, Edge::of(values(0)), large().layout);
  EXPECT_ERROR(layouts_.learn(0, Edge::of(values(0)), large().layout), MetadataError,
               "layout 0 was sent twice");
  EXPECT_ERROR(layouts_.take(frame(7, values(0), kLargeBytes)), MetadataError,
               "layout 7, which was not sent");
  EXPECT_ERROR(layouts_.take(large_frame(grads(0))), MetadataError, "belongs to a different edge");
  EXPECT_ERROR(layouts_.take(frame(0, values(0), 7)), MetadataError,
               "a frame announces 7 bytes of tensors, its layout has 100000");
  EXPECT_TRUE(byte_transport_.posted.empty());
}

TEST_F(IncomingLayoutsTest, RefusesAReleaseThatWasNotRequested) {
  repeat();
  layouts_.expect(values(2), 0);
  FrameHead release;
  release.kind = FrameKind::kReleased;
  release.layout = 0;
  release.count = 1;
  release.parts = 1;
  EXPECT_ERROR(layouts_.take_back(release), MetadataError,
               "memory of layout 0 was released without a request");
  const FrameHead asked = answer(change_layout(2));
  FrameHead wrong = asked;
  wrong.count = 2;
  EXPECT_THROW(layouts_.take_back(wrong), MetadataError);
  wrong = asked;
  wrong.parts = 2;
  EXPECT_THROW(layouts_.take_back(wrong), MetadataError);
  EXPECT_EQ(layouts_.take_back(asked).size(), 1U);
  EXPECT_THROW(layouts_.take_back(asked), MetadataError) << "answered twice";
}

TEST_F(IncomingLayoutsTest, RefusesTensorsOfALinkWithoutOne) {
  const auto value = encode(at::ones({kLargeBytes}, at::kByte), c10::Device(c10::kCPU));
  EXPECT_ERROR(layouts_.learn(0, Edge::of(values(0)), value.layout), MetadataError,
               "a device link, which is not available");
}

TEST(IncomingLayouts, ReceivesOfTheLinkArePostedWithTheirFrames) {
  ReceivingByteTransport byte_transport;
  ReceivingLink link;
  IncomingLayouts layouts(byte_transport, &link, Rank(1));
  const auto value = encode(
      c10::ivalue::Tuple::create({at::ones({10}, at::kByte), at::ones({kLargeBytes}, at::kByte)}),
      c10::Device(c10::kCPU));
  ASSERT_EQ(value.by_link, (std::vector{true, true}));
  layouts.learn(0, Edge::of(values(0)), value.layout);
  for (const int32_t m : {0, 1, 2}) {
    layouts.expect(values(m), 3);
    EXPECT_EQ(link.posted.size(), 2 * static_cast<std::size_t>(m));
    const auto taken = layouts.take(frame(0, values(m), kLargeBytes + 10, /*epoch=*/3));
    EXPECT_TRUE(taken.memory.works.empty());
    EXPECT_EQ(taken.memory.tensors[0].bytes().numel(), 10);
  }
  ASSERT_EQ(link.posted.size(), 6U);
  EXPECT_EQ(link.posted[0].bytes, 10);
  EXPECT_EQ(link.posted[1].bytes, kLargeBytes);
  for (const auto& posted : link.posted) {
    EXPECT_EQ(posted.from, Rank(1));
    EXPECT_EQ(posted.epoch, 3U);
  }
  EXPECT_EQ(layouts.num_posted(), 0U);
  EXPECT_TRUE(byte_transport.posted.empty());
}

}  // namespace
}  // namespace stagecraft::detail
