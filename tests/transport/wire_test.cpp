// The parts of the wire protocol, without an engine.

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>

#include "stagecraft/base/checksum.h"
#include "stagecraft/base/device_error.h"
#include "stagecraft/base/error.h"
#include "stagecraft/base/sha256.h"
#include "stagecraft/transport/fingerprint.h"
#include "stagecraft/transport/local/local_world.h"
#include "stagecraft/transport/wire/bytes.h"
#include "stagecraft/transport/wire/frame.h"
#include "stagecraft/transport/wire/handshake.h"
#include "stagecraft/transport/wire/inbox.h"
#include "stagecraft/transport/wire/meetings.h"
#include "stagecraft/transport/wire/packed_value.h"
#include "stagecraft/transport/wire/tensor_layout.h"
#include "tests/support/expect_error.h"

namespace stagecraft::detail {
namespace {

c10::IValue some_value() {
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  dict.insert("mask", at::arange(6).view({2, 3}).t());
  dict.insert("name", "abc");
  c10::List<std::optional<at::Tensor>> list;
  list.push_back(at::ones({2}));
  list.push_back(std::nullopt);
  return c10::ivalue::Tuple::create({at::randn({3, 4}).requires_grad_(), 7, -1.5, true,
                                     c10::complex<double>(1, 2), dict, list,
                                     std::vector<int64_t>{1, 2}, std::vector<double>{},
                                     at::Tensor(), at::full({1}, 2.0).expand({3, 4})});
}

TEST(ValueCodec, KeepsElementTypesAndNumbers) {
  const auto value = some_value();
  const auto back = unpack(pack(encode(value)));
  const std::vector<c10::IValue> elements = back.toTupleRef().elements().vec();
  const std::vector<c10::IValue> sent = value.toTupleRef().elements().vec();
  ASSERT_EQ(elements.size(), sent.size());
  EXPECT_TRUE(at::equal(elements[0].toTensor(), sent[0].toTensor()));
  EXPECT_TRUE(elements[0].toTensor().requires_grad());
  EXPECT_EQ(elements[1].toInt(), 7);
  EXPECT_EQ(elements[2].toDouble(), -1.5);
  EXPECT_TRUE(elements[3].toBool());
  EXPECT_EQ(elements[5].toGenericDict().at("mask").toTensor().strides(), at::IntArrayRef({1, 3}));
  EXPECT_EQ(elements[6].toList().elementType()->str(), "Tensor?");
  EXPECT_EQ(elements[7].toIntVector(), std::vector<int64_t>({1, 2}));
  EXPECT_TRUE(elements[8].isDoubleList());
  EXPECT_FALSE(elements[9].toTensor().defined());
  EXPECT_EQ(elements[10].toTensor().strides(), at::IntArrayRef({0, 0}));
}

TEST(ValueCodec, TheLayoutIsTheSameWhereOnlyNumbersDiffer) {
  const auto of = [](const at::Tensor& tensor, double weight) {
    return encode(c10::ivalue::Tuple::create({tensor, weight, "text"}));
  };
  EXPECT_EQ(of(at::ones({2, 3}), 1).layout, of(at::full({2, 3}, 5.0), 2).layout);
  EXPECT_NE(of(at::ones({2, 3}), 1).layout, of(at::ones({3, 2}), 1).layout);
  EXPECT_NE(of(at::ones({2, 3}), 1).layout, of(at::ones({3, 2}).t(), 1).layout);
}

TEST(ValueCodec, DenseTensorsAreSentFromTheirOwnMemory) {
  const auto tensor = at::randn({4, 5, 6}).permute({2, 0, 1});
  const auto encoded = encode(tensor);
  ASSERT_EQ(encoded.tensors.size(), 1U);
  EXPECT_EQ(encoded.tensors[0].const_data_ptr(), tensor.const_data_ptr());
}

TEST(ValueCodec, ExpandedTensorsThatAreConjugatedOrNegatedLazilyKeepTheirNumbers) {
  const auto complex = at::randn({3, 1}, at::kComplexFloat);
  const std::vector<at::Tensor> tensors = {
      complex.conj(),
      complex.conj().expand({3, 4}),
      complex.expand({3, 4}).conj(),
      at::imag(complex.conj()).expand({3, 4}),
      at::randn({4, 3}, at::kComplexFloat).t().conj(),
      at::randn({3, 8}, at::kComplexFloat).slice(1, 0, 8, 2).conj(),
  };
  for (const auto& tensor : tensors) {
    const auto back = unpack(pack(encode(tensor))).toTensor();
    EXPECT_TRUE(at::equal(back, tensor.resolve_conj().resolve_neg()));
    EXPECT_EQ(back.strides(), tensor.strides());
  }
}

TEST(TensorLayout, OneThatSaysItIsDenseIs) {
  const auto read = [](const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
    TensorLayout layout;
    layout.form = TensorLayout::Form::kDense;
    layout.dtype = at::kFloat;
    layout.device = at::kCPU;
    layout.sizes = sizes;
    layout.strides = strides;
    ByteWriter out;
    layout.write(out);
    ByteReader in(out.bytes());
    return TensorLayout::read(in);
  };
  EXPECT_ERROR(read({10, 10}, {1, 1}), MetadataError, "gaps or overlaps");
  EXPECT_ERROR(read({10, 10}, {20, 1}), MetadataError, "gaps or overlaps");
  EXPECT_ERROR(read({10}, {int64_t{1} << 60}), MetadataError, "gaps or overlaps");
  EXPECT_EQ(read({10, 10}, {1, 10}).num_bytes(), 400U);
  EXPECT_EQ(read({10, 1, 5}, {5, 77, 1}).num_bytes(), 200U);
  EXPECT_EQ(read({10, 7, 5}, {5, 0, 1}).num_bytes(), 200U);
  EXPECT_EQ(read({0, 5}, {5, 1}).num_bytes(), 0U);
}

TEST(ValueCodec, RefusesWhatCannotTravel) {
  EXPECT_ERROR(encode(c10::IValue::make_capsule(c10::make_intrusive<torch::CustomClassHolder>())),
               ArgumentError, "cannot be sent to a different process");
  EXPECT_ERROR(encode(at::ones({2, 2}).to_sparse()), ArgumentError, "sparse");
  EXPECT_ERROR(encode(at::ones({2}).requires_grad_().mul(2)), ArgumentError,
               "has autograd history");
  auto deep = c10::IValue(1);
  for (int i = 0; i < 300; ++i) deep = c10::ivalue::Tuple::create({deep});
  EXPECT_ERROR(encode(deep), ArgumentError, "is nested deeper");
}

TEST(ValueCodec, DamagedBytesAreAnErrorNeverACrash) {
  const std::string bytes = pack(encode(some_value()));
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(unpack(std::string_view(bytes).substr(0, size)), MetadataError) << size;
  }
  std::mt19937 random(1);
  int errors = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string damaged = bytes;
    for (int i = 0; i < 3; ++i) damaged[random() % damaged.size()] = static_cast<char>(random());
    try {
      unpack(damaged);
    } catch (const MetadataError&) {
      ++errors;
    }
  }
  EXPECT_GT(errors, 5000);
}

TEST(ValueCodec, ALackOfMemoryIsNoDamage) {
  const auto message_with = [](TensorLayout::Form form, int64_t size, int64_t stride) {
    TensorLayout layout;
    layout.form = form;
    layout.sizes = {size};
    layout.strides = {stride};
    ByteWriter out;
    out.put(uint32_t{1});
    layout.write(out);
    out.put('T');
    EncodedValue value;
    value.layout = out.take();
    value.tensors = {at::ones({8}, at::kByte)};
    return pack(value);
  };
  constexpr int64_t kMany = int64_t{1} << 46;  // more than processors can address
  // Two elements with a large gap are a short message that needs much memory.
  EXPECT_ERROR(unpack(message_with(TensorLayout::Form::kCopy, 2, kMany)), OutOfMemoryError,
               "a message cannot be read: ");
  // A message that lacks elements is damaged.
  EXPECT_ERROR(unpack(message_with(TensorLayout::Form::kDense, kMany, 1)), MetadataError,
               "a message is too short: expected");
}

TEST(Checksum, SeesEveryByte) {
  std::string text(101, 'x');
  std::vector<uint64_t> sums;
  const auto sum = [&] {
    return checksum({reinterpret_cast<std::byte*>(text.data()), text.size()});
  };
  sums.push_back(sum());
  for (char& byte : text) {
    byte = 'y';
    sums.push_back(sum());
    byte = 'x';
  }
  EXPECT_EQ(sum(), sums[0]);
  std::sort(sums.begin(), sums.end());
  EXPECT_EQ(std::unique(sums.begin(), sums.end()), sums.end());
}

TEST(Frame, ADamagedHeadIsNoFrame) {
  FrameHead head;
  head.number = 3;
  head.body_bytes = 10;
  seal(head);
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof(head));
  EXPECT_EQ(read_head(bytes, 3).body_bytes, 10U);
  EXPECT_ERROR(read_head(bytes, 4), MetadataError, "expected frame 4, got frame 3");
  for (char& byte : bytes) {
    byte = static_cast<char>(byte ^ 1);
    EXPECT_THROW(read_head(bytes, 3), MetadataError);
    byte = static_cast<char>(byte ^ 1);
  }
}

// Brings one frame whose body follows, but never comes.
class HaltingByteTransport final : public ByteTransport {
 public:
  explicit HaltingByteTransport(uint64_t body_bytes) : body_bytes_(body_bytes) {}

  Rank rank() const override { return Rank(0); }
  int32_t num_ranks() const override { return 2; }
  WorkPtr send(Rank, Tag, const at::Tensor&) override { return nullptr; }
  WorkPtr receive(Rank, Tag tag, const at::Tensor& bytes) override {
    const bool comes = tag == kFrameTag && !has_come_;
    if (comes) {
      FrameHead head;
      head.kind = FrameKind::kHeartbeat;
      head.body_follows = 1;
      head.body_bytes = body_bytes_;
      seal(head);
      std::memcpy(bytes.mutable_data_ptr(), &head, sizeof(head));
      has_come_ = true;
    }
    return std::make_shared<HaltingWork>(comes);
  }

 private:
  class HaltingWork final : public Work {
   public:
    explicit HaltingWork(bool is_done) : is_done_(is_done) {}
    bool wait() override {
      while (!is_done_ && !interrupted_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return is_done_;
    }
    void interrupt() override { interrupted_ = true; }

   private:
    const bool is_done_;
    std::atomic<bool> interrupted_{false};
  };

  uint64_t body_bytes_;
  bool has_come_ = false;
};

class NoListener final : public InboxListener {
 public:
  void on_value(Rank, const FrameHead&, FencedValue) override {}
  void on_damaged(Rank, const FrameHead&, const std::string&) override {}
  void on_refused(Rank, const FrameHead&, const std::string&) override {}
  void on_control(Rank, const FrameHead&, std::string_view) override {}
  void on_answer(Rank, const FrameHead&) override {}
  void on_lost(Rank, const std::string&) override {}
  void on_closed(Rank) override {}
};

// Until the body has been waited for a while, as far as that can be seen from here.
std::chrono::duration<double> silence_within(uint64_t body_bytes) {
  HaltingByteTransport byte_transport(body_bytes);
  NoListener listener;
  Inbox inbox(byte_transport, /*link=*/nullptr, Rank(1), listener);
  inbox.start();
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  const auto now = Deadline::Clock::now();
  return now - inbox.last_heard();
}

TEST(Inbox, AMessageThatStopsArrivingIsSilenceAfterAWhile) {
  EXPECT_GT(silence_within(100'000).count(), 0.5);
  EXPECT_LE(silence_within(500'000'000).count(), 0);
}

// Delivers some frames at once. Then the connection is lost: nothing more can be posted.
class EndingByteTransport final : public ByteTransport {
 public:
  explicit EndingByteTransport(std::vector<std::string> frames) : frames_(std::move(frames)) {}

  Rank rank() const override { return Rank(0); }
  int32_t num_ranks() const override { return 2; }
  WorkPtr send(Rank, Tag, const at::Tensor&) override { return nullptr; }
  WorkPtr receive(Rank, Tag, const at::Tensor& bytes) override {
    const std::size_t number = num_posted_++;
    if (number >= kPostedFrames) throw std::runtime_error("closed");
    const bool comes = number < frames_.size();
    if (comes)
      std::memcpy(bytes.mutable_data_ptr(), frames_[number].data(), frames_[number].size());
    return std::make_shared<EndedWork>(comes);
  }

 private:
  class EndedWork final : public Work {
   public:
    explicit EndedWork(bool has_come) : has_come_(has_come) {}
    bool wait() override {
      if (!has_come_) throw std::runtime_error("closed");
      return true;
    }
    void interrupt() override {}

   private:
    const bool has_come_;
  };

  const std::vector<std::string> frames_;
  std::size_t num_posted_ = 0;
};

std::string frame_of(FrameHead head, const std::string& body) {
  head.body_bytes = body.size();
  seal(head);
  return std::string(reinterpret_cast<const char*>(&head), sizeof(head)) + body;
}

/// Writes down what it hears, until nothing more can come.
class WritingListener final : public InboxListener {
 public:
  void on_value(Rank, const FrameHead&, FencedValue) override { add("value"); }
  void on_damaged(Rank, const FrameHead&, const std::string& what) override {
    add("damaged " + what);
  }
  void on_refused(Rank, const FrameHead&, const std::string& what) override {
    add("refused " + what);
  }
  void on_control(Rank, const FrameHead&, std::string_view body) override {
    add("control " + std::string(body));
  }
  void on_answer(Rank, const FrameHead&) override { add("answer"); }
  void on_lost(Rank, const std::string& why) override { end("lost " + why); }
  void on_closed(Rank) override { end("closed"); }

  std::vector<std::string> wait() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return is_over_; });
    return heard_;
  }

 private:
  void add(std::string what) {
    const std::lock_guard lock(mutex_);
    heard_.push_back(std::move(what));
  }
  void end(std::string what) {
    const std::lock_guard lock(mutex_);
    heard_.push_back(std::move(what));
    is_over_ = true;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> heard_;
  bool is_over_ = false;
};

std::vector<std::string> heard_of(const std::vector<std::string>& frames) {
  EndingByteTransport byte_transport(frames);
  WritingListener listener;
  Inbox inbox(byte_transport, /*link=*/nullptr, Rank(1), listener);
  inbox.start();
  return listener.wait();
}

TEST(Inbox, WhatCameBeforeTheEndIsReadFirst) {
  std::vector<std::string> frames;
  for (uint64_t number = 0; number < 3; ++number) {
    FrameHead head;
    head.kind = FrameKind::kAbort;
    head.number = number;
    frames.push_back(frame_of(head, "because " + std::to_string(number)));
  }
  EXPECT_THAT(heard_of(frames),
              testing::ElementsAre("control because 0", "control because 1", "control because 2",
                                   "lost its process has ended or cannot be reached"));
}

TEST(Inbox, AValueForWhichThereIsNoMemoryIsThisRanksOwnFailure) {
  TensorLayout layout;
  layout.form = TensorLayout::Form::kDense;
  layout.sizes = {int64_t{1} << 46};  // more than processors can address
  layout.strides = {1};
  ByteWriter out;
  out.put(uint32_t{1});
  layout.write(out);
  out.put('T');
  FrameHead head;
  head.layout_bytes = static_cast<uint32_t>(out.bytes().size());
  head.tensor_bytes = layout.num_bytes();
  const auto heard = heard_of({frame_of(head, out.take())});
  ASSERT_EQ(heard.size(), 2U) << testing::PrintToString(heard);
  EXPECT_THAT(heard[0], testing::StartsWith("refused a message cannot be read: "));
  EXPECT_EQ(heard[1], "lost its messages can no longer be read");
}

TEST(Meetings, TakePlaceForAllOrForNone) {
  Meetings meetings(2);
  EXPECT_EQ(meetings.come(Rank(0), {1, "barrier", "a"}), std::nullopt);
  EXPECT_EQ(meetings.withdraw(Rank(0), 1), std::vector<Rank>{Rank(1)});
  EXPECT_EQ(meetings.come(Rank(1), {1, "barrier", "b"}), std::nullopt);
  const auto met = meetings.come(Rank(0), {2, "all_gather", "c"});
  ASSERT_TRUE(met.has_value());
  EXPECT_EQ((*met)[0].attempt, 2U);
  EXPECT_EQ((*met)[0].call, "all_gather");
  EXPECT_EQ((*met)[1].bytes, "b");
  EXPECT_EQ(meetings.withdraw(Rank(1), 1), std::nullopt) << "too late";
}

std::string hex(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) {
    text += "0123456789abcdef"[static_cast<uint8_t>(byte) >> 4U];
    text += "0123456789abcdef"[static_cast<uint8_t>(byte) & 15U];
  }
  return text;
}

TEST(Sha256, IsThatOfTheStandard) {
  EXPECT_EQ(hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256(std::string(1000000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_EQ(hex(sign("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(Fingerprint, TheMismatchNamesRanksAndValues) {
  EXPECT_EQ(describe_mismatch({{{"a", "1"}, {"b", "2"}}, {{"b", "2"}, {"a", "1"}}}), "");
  EXPECT_EQ(describe_mismatch({{{"version", "1"}}, {{"version", "2"}}, {{"version", "1"}}}),
            "version is 1 on ranks 0 and 2, 2 on rank 1");
  EXPECT_EQ(describe_mismatch({{{"stages", "4"}}, {}}),
            "stages is 4 on rank 0, not given on rank 1");
  LocalWorld world(3);
  world.run([](Transport& transport) {
    const Fingerprint fingerprint = {{"schedule", transport.rank() == Rank(2) ? "GPipe" : "1F1B"}};
    const auto soon = Deadline::after(std::chrono::seconds(20));
    EXPECT_ERROR(handshake(transport, fingerprint, soon), MetadataError,
                 "the ranks do not agree: schedule is 1F1B on ranks 0 and 1, GPipe on rank 2");
    handshake(transport, {{"schedule", "1F1B"}}, soon);
  });
}

std::string message_of_rank(const JoinOptions& options) {
  ByteWriter out;
  out.put(kHandshakeMagic);
  write_fingerprint(out, fingerprint_of_rank(options, 2));
  return out.take();
}

// What a rank without the same token, or of a different build, says of itself, read by this one.
std::string compare_with(std::string theirs) {
  const Fingerprint mine = fingerprint_of_rank({}, 2);
  ByteReader in(theirs);
  const auto foreign = read_magic(in, mine);
  try {
    require_same_fingerprints({mine, foreign ? *foreign : read_fingerprint(in)});
  } catch (const MetadataError& error) {
    return error.what();
  }
  return "";
}

TEST(Handshake, EqualRanksAgree) {
  EXPECT_EQ(compare_with(message_of_rank({})), "");
}

TEST(Handshake, EveryBuiltInFactIsCompared) {
  for (const std::string name :
       {"version", "number of ranks", "torch", "byte order", "wire protocol", "checksums"}) {
    EXPECT_THAT(compare_with(message_of_rank({.fingerprint = {{name, "other"}}})),
                testing::HasSubstr("other on rank 1"))
        << name;
  }
  EXPECT_THAT(compare_with(message_of_rank({.fingerprint = {{"wire protocol", "SCW1"}}})),
              testing::EndsWith("agree: wire protocol is SCW3 on rank 0, SCW1 on rank 1"));
  EXPECT_THAT(compare_with(message_of_rank({.token = "a secret"})),
              testing::HasSubstr("token is not given on rank 0, "));
}

// The message of a rank whose byte order is the opposite one begins with the swapped magic.
TEST(Handshake, TheOtherByteOrderIsNamedAsSuch) {
  static_assert(swap_bytes(0x01020304) == 0x04030201);
  static_assert(swap_bytes(swap_bytes(kHandshakeMagic)) == kHandshakeMagic);
  auto theirs = message_of_rank({});
  std::reverse(theirs.begin(), theirs.begin() + 4);
  EXPECT_EQ(compare_with(theirs),
            std::endian::native == std::endian::little
                ? "the ranks do not agree: byte order is little on rank 0, big on rank 1"
                : "the ranks do not agree: byte order is big on rank 0, little on rank 1");
}

TEST(Handshake, ADifferentMagicIsADifferentVersion) {
  auto theirs = message_of_rank({});
  theirs[0] = 'X';
  EXPECT_THAT(compare_with(theirs), testing::HasSubstr("one that joins differently on rank 1"));
  EXPECT_THROW(compare_with("SC"), MetadataError);
}

}  // namespace
}  // namespace stagecraft::detail
