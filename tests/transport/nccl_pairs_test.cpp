// The communicators of a rank, with a table of functions that stands for NCCL: no process, no GPU.

#include "stagecraft/transport/nccl/nccl_pairs.h"

#include <atomic>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ops/zeros.h>

#include "stagecraft/base/deadline.h"
#include "stagecraft/base/error.h"
#include "tests/support/expect_error.h"

namespace stagecraft::detail {
namespace {

using State = NcclPairState::State;

// What the functions of the table return, and how often they were called.
struct FakeTable {
  std::atomic<int> id_result{0};
  std::atomic<int> init_result{0};
  std::atomic<int> send_result{0};
  std::atomic<int> async_error{0};
  std::atomic<bool> hangs{false};
  std::atomic<int> created{0};
  std::atomic<int> sent{0};
  std::atomic<int> received{0};
  std::atomic<int> aborted{0};
  std::atomic<int> destroyed{0};
};
std::shared_ptr<FakeTable> table;

std::shared_ptr<const NcclLibrary> make_library() {
  auto library = std::make_shared<NcclLibrary>();
  library->get_unique_id = [](NcclLibrary::UniqueId* id) {
    *id = {};
    return table->id_result.load();
  };
  library->get_error_string = [](int) { return "a fake failure"; };
  library->comm_init_rank = [](void** comm, int, NcclLibrary::UniqueId, int) {
    const auto mine = table;
    while (mine->hangs) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    *comm = mine.get();
    ++mine->created;
    return mine->init_result.load();
  };
  library->send = [](const void*, std::size_t, int, int, void*, void*) {
    ++table->sent;
    return table->send_result.load();
  };
  library->receive = [](void*, std::size_t, int, int, void*, void*) {
    ++table->received;
    return 0;
  };
  library->comm_abort = [](void*) {
    ++table->aborted;
    return 0;
  };
  library->comm_destroy = [](void*) {
    ++table->destroyed;
    return 0;
  };
  library->comm_get_async_error = [](void*, int* error) {
    *error = table->async_error;
    return 0;
  };
  return library;
}

class NcclPairsTest : public testing::Test {
 protected:
  NcclPairsTest() { table = std::make_shared<FakeTable>(); }
  // No thread of this test may use the table of the next one, also none that was left behind.
  ~NcclPairsTest() override {
    table->hangs = false;
    pairs_.close(std::chrono::seconds(20));
    const auto deadline = Deadline::after(std::chrono::seconds(20));
    while (num_threads() > threads_ && !deadline.has_passed()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(num_threads(), threads_);
  }

  // Counts after a first thread, with which a sanitizer starts a thread of its own.
  static std::ptrdiff_t num_threads_at_rest() {
    std::thread([] {}).join();
    return num_threads();
  }

  static std::ptrdiff_t num_threads() {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return std::distance(begin(tasks), end(tasks));
  }

  // Opens the pair from this rank to `to`, as its first value does. The ids that are sent to the
  // other rank are counted.
  bool open(Rank to, uint64_t epoch = 0) {
    return pairs_.open(
        to, epoch, [&](const std::string& id) { ids_.push_back(id); }, [&] { return is_over_; });
  }
  void accept(Rank from, uint64_t epoch = 0) { pairs_.accept(from, epoch, kId); }
  void send(uint64_t epoch = 0) { pairs_.send(Rank(1), epoch, at::zeros({8}, at::kByte)); }
  void receive(uint64_t epoch = 0) { pairs_.receive(Rank(1), epoch, at::zeros({8}, at::kByte)); }
  // Both pairs with rank 1.
  void connect(uint64_t epoch = 0) {
    EXPECT_TRUE(open(Rank(1), epoch));
    accept(Rank(1), epoch);
    receive(epoch);
    expect(State::kOpen);
  }
  void expect(State state) const {
    EXPECT_EQ(pairs_.state(Rank(1), true), state);
    EXPECT_EQ(pairs_.state(Rank(1), false), state);
  }

  const std::ptrdiff_t threads_ = num_threads_at_rest();
  const std::string kId = std::string(sizeof(NcclLibrary::UniqueId), 'x');
  bool is_over_ = false;
  std::vector<std::string> ids_;
  NcclPairs pairs_{make_library(), Rank(0), 3, c10::kCPU, std::chrono::seconds(20)};
};

TEST_F(NcclPairsTest, ARankWaitsUntilAnotherHasOpenedItsPair) {
  const auto wait = [&](uint64_t epoch = 0) {
    return pairs_.wait_accepted(Rank(1), epoch, [&] { return is_over_; });
  };
  is_over_ = true;
  EXPECT_FALSE(wait());
  is_over_ = false;
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    accept(Rank(1));
  });
  EXPECT_TRUE(wait());
  other.join();
  EXPECT_EQ(pairs_.state(Rank(1), false), State::kOpen);
  EXPECT_EQ(pairs_.state(Rank(1), true), State::kIdle);
  pairs_.begin_epoch(1);
  EXPECT_FALSE(wait(0));  // of an epoch that is over
}

TEST_F(NcclPairsTest, APairIsConnectedWhenItFirstTalks) {
  expect(State::kIdle);
  send();
  receive();
  EXPECT_EQ(table->sent, 0);
  EXPECT_EQ(table->received, 0);
  EXPECT_EQ(table->created, 0);
  EXPECT_TRUE(open(Rank(1)));
  EXPECT_EQ(pairs_.state(Rank(1), true), State::kOpen);
  EXPECT_EQ(table->created, 1);
  EXPECT_EQ(table->sent, 1);  // the first byte
  ASSERT_EQ(ids_.size(), 1U);
  EXPECT_EQ(ids_[0].size(), sizeof(NcclLibrary::UniqueId));
  send();
  EXPECT_EQ(table->sent, 2);
  // The other pairs have no communicator.
  EXPECT_EQ(pairs_.state(Rank(1), false), State::kIdle);
  EXPECT_EQ(pairs_.state(Rank(2), true), State::kIdle);
  EXPECT_EQ(pairs_.state(Rank(2), false), State::kIdle);
}

TEST_F(NcclPairsTest, APairIsConnectedOnce) {
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(open(Rank(1)));
  EXPECT_EQ(ids_.size(), 1U);
  EXPECT_EQ(table->created, 1);
}

// The id overtakes nothing: the first value follows it on the stream of frames. It may come before
// this rank has created the communicator.
TEST_F(NcclPairsTest, TheFirstReceiveWaitsForTheCommunicator) {
  table->hangs = true;
  accept(Rank(1));
  EXPECT_EQ(pairs_.state(Rank(1), false), State::kConnecting);
  std::thread later([] { table->hangs = false; });
  receive();
  later.join();
  EXPECT_EQ(pairs_.state(Rank(1), false), State::kOpen);
  EXPECT_EQ(table->received, 2);
}

TEST_F(NcclPairsTest, AKeyIsCheckedAndComesOnce) {
  EXPECT_ERROR(pairs_.accept(Rank(1), 0, "short"), MetadataError,
               "a key for NCCL has 5 bytes, expected 128");
  accept(Rank(1));
  EXPECT_ERROR(accept(Rank(1)), MetadataError, "rank 1 sent two keys for NCCL");
}

TEST_F(NcclPairsTest, PairsOfAnEpochThatIsOverAreNotConnected) {
  pairs_.begin_epoch(4);
  EXPECT_FALSE(open(Rank(1), 3));
  accept(Rank(1), 3);
  pairs_.cancel(4);
  EXPECT_FALSE(open(Rank(1), 4));
  accept(Rank(1), 4);
  expect(State::kIdle);
  EXPECT_EQ(table->created, 0);
  pairs_.begin_epoch(5);
  connect(5);
}

TEST_F(NcclPairsTest, AWaitForAPeerEndsWithItsWorld) {
  table->hangs = true;
  is_over_ = true;
  EXPECT_FALSE(open(Rank(1)));
  EXPECT_EQ(pairs_.state(Rank(1), true), State::kConnecting);
  table->hangs = false;
}

TEST_F(NcclPairsTest, SkipsTransfersOfOtherEpochs) {
  pairs_.begin_epoch(4);
  connect(4);
  send(3);
  send(5);
  EXPECT_EQ(table->sent, 1);
}

TEST_F(NcclPairsTest, TheFirstFailureOfAPairIsNamedUntilItIsAborted) {
  connect();
  table->send_result = 2;
  send();
  EXPECT_EQ(pairs_.state(Rank(1), true), State::kFailed);
  EXPECT_EQ(pairs_.state(Rank(1), false), State::kOpen);
  const auto failure = pairs_.find_failure();
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->rank, Rank(1));
  EXPECT_EQ(failure->message, "rank 1: NCCL between it and rank 0: ncclSend: a fake failure");
  pairs_.abort();
  expect(State::kIdle);
  EXPECT_FALSE(pairs_.find_failure());
  EXPECT_EQ(table->aborted, 2);
  table->send_result = 0;
  pairs_.begin_epoch(1);
  connect(1);
}

TEST_F(NcclPairsTest, AnErrorThatNcclReportsLaterIsNamed) {
  connect();
  EXPECT_FALSE(pairs_.find_failure());
  table->async_error = NcclLibrary::kInProgress;
  EXPECT_FALSE(pairs_.find_failure());
  table->async_error = 6;
  EXPECT_EQ(pairs_.find_failure()->rank, Rank(1));
}

TEST_F(NcclPairsTest, ARefusalNamesThePair) {
  table->init_result = 5;
  EXPECT_ERROR(open(Rank(2)), ArgumentError,
               "NCCL: rank 0 with rank 2: ncclCommInitRank: a fake failure");
  EXPECT_EQ(pairs_.state(Rank(2), true), State::kFailed);
  // This rank is to blame, not its peer.
  const auto failure = pairs_.find_failure();
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->rank, Rank(0));
  EXPECT_EQ(failure->message, "rank 0: NCCL: rank 0 with rank 2: ncclCommInitRank: a fake failure");
}

TEST_F(NcclPairsTest, ARefusalOfTheReceiverIsFoundLater) {
  table->init_result = 5;
  accept(Rank(1));
  receive();
  EXPECT_EQ(table->received, 0);
  EXPECT_EQ(pairs_.find_failure()->message,
            "rank 0: NCCL: rank 0 with rank 1: ncclCommInitRank: a fake failure");
}

TEST_F(NcclPairsTest, AnIdThatCannotBeMadeNamesThePair) {
  table->id_result = 2;
  EXPECT_ERROR(open(Rank(1)), ArgumentError,
               "NCCL: rank 0 with rank 1: ncclGetUniqueId: a fake failure");
  EXPECT_TRUE(ids_.empty());
}

TEST_F(NcclPairsTest, ACommunicatorThatComesTooLateIsAborted) {
  NcclPairs pairs(make_library(), Rank(0), 2, c10::kCPU, std::chrono::milliseconds(50));
  table->hangs = true;
  EXPECT_ERROR(pairs.open(
                   Rank(1), 0, [](const std::string&) {}, [] { return false; }),
               TimeoutError, "rank 1 to connect over NCCL");
  pairs.abort();
  EXPECT_EQ(pairs.state(Rank(1), true), State::kIdle);
  table->hangs = false;
  const auto deadline = Deadline::after(std::chrono::seconds(20));
  while (table->aborted == 0 && !deadline.has_passed()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(table->aborted, 1);
  EXPECT_EQ(table->created, 1);
  EXPECT_EQ(pairs.state(Rank(1), true), State::kIdle);
}

TEST_F(NcclPairsTest, ClosingDestroysEachCommunicatorOnce) {
  connect();
  pairs_.close(std::chrono::seconds(20));
  expect(State::kIdle);
  EXPECT_EQ(table->destroyed, 2);
  pairs_.close(std::chrono::seconds(20));
  EXPECT_EQ(table->destroyed, 2);
}

TEST(NcclPairState, WhatComesAfterTheEndChangesNothing) {
  NcclPairState pair;
  EXPECT_FALSE(pair.move_to(State::kFailed, "too late"));
  EXPECT_FALSE(pair.move_to(State::kOpen));
  EXPECT_EQ(pair.state(), State::kIdle);
  EXPECT_EQ(pair.failure(), "");
  EXPECT_TRUE(pair.move_to(State::kConnecting));
  EXPECT_TRUE(pair.move_to(State::kFailed, "first"));
  EXPECT_FALSE(pair.move_to(State::kFailed, "second"));
  EXPECT_FALSE(pair.move_to(State::kOpen));
  EXPECT_EQ(pair.failure(), "first");
  EXPECT_TRUE(pair.move_to(State::kIdle));
  EXPECT_FALSE(pair.move_to(State::kIdle));
  EXPECT_EQ(pair.failure(), "");
}

TEST(NcclPairStateDeathTest, OneCommunicatorAtATime) {
  NcclPairState pair;
  pair.move_to(State::kConnecting);
  EXPECT_DEATH(pair.move_to(State::kConnecting), "SC_ASSERT");
  pair.move_to(State::kOpen);
  EXPECT_DEATH(pair.move_to(State::kOpen), "SC_ASSERT");
  EXPECT_DEATH(pair.move_to(State::kConnecting), "SC_ASSERT");
}

}  // namespace
}  // namespace stagecraft::detail
