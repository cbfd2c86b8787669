// The communicators of a rank, with a table of functions that stands for NCCL: no process, no GPU.

#include "stagecraft/transport/nccl/nccl_pairs.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ops/zeros.h>

#include "stagecraft/base/error.h"
#include "tests/support/expect_error.h"

namespace stagecraft::detail {
namespace {

using State = NcclPairState::State;

// What the functions of the table return, and how often they were called.
struct FakeTable {
  std::atomic<int> init_result{0};
  std::atomic<int> send_result{0};
  std::atomic<int> async_error{0};
  std::atomic<bool> hangs{false};
  std::atomic<int> created{0};
  std::atomic<int> sent{0};
  std::atomic<int> aborted{0};
  std::atomic<int> destroyed{0};
};
std::shared_ptr<FakeTable> table;

std::shared_ptr<const NcclLibrary> make_library() {
  auto library = std::make_shared<NcclLibrary>();
  library->get_unique_id = [](NcclLibrary::UniqueId* id) {
    *id = {};
    return NcclLibrary::kSuccess;
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
  library->receive = [](void*, std::size_t, int, int, void*, void*) { return 0; };
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
  // No thread of this test may use the table of the next one.
  ~NcclPairsTest() override { pairs_.close(std::chrono::seconds(20)); }

  void connect(uint64_t epoch = 0,
               std::chrono::milliseconds limit = std::chrono::milliseconds(20'000)) {
    const auto ids = pairs_.make_ids();
    pairs_.connect({ids, ids, ids}, epoch, Deadline::after(limit), [] { return false; });
  }
  void send(uint64_t epoch = 0) { pairs_.send(Rank(1), epoch, at::zeros({8}, at::kByte)); }
  void expect_all(State state) const {
    for (const Rank other : {Rank(1), Rank(2)}) {
      EXPECT_EQ(pairs_.state(other, true), state);
      EXPECT_EQ(pairs_.state(other, false), state);
    }
  }

  NcclPairs pairs_{make_library(), Rank(0), 3, c10::kCPU};
};

TEST_F(NcclPairsTest, ConnectsEveryPair) {
  expect_all(State::kIdle);
  send();
  EXPECT_EQ(table->sent, 0);
  connect();
  expect_all(State::kOpen);
  EXPECT_EQ(table->created, 4);
  EXPECT_EQ(table->sent, 2);  // the first byte of each pair
  send();
  EXPECT_EQ(table->sent, 3);
}

TEST_F(NcclPairsTest, SkipsTransfersOfOtherEpochs) {
  connect(/*epoch=*/4);
  send(3);
  send(5);
  EXPECT_EQ(table->sent, 2);
}

TEST_F(NcclPairsTest, TheFirstFailureOfAPairIsNamedUntilItIsAborted) {
  connect();
  table->send_result = 2;
  send();
  EXPECT_EQ(pairs_.state(Rank(1), true), State::kFailed);
  EXPECT_EQ(pairs_.state(Rank(1), false), State::kOpen);
  EXPECT_EQ(pairs_.state(Rank(2), true), State::kOpen);
  const auto failure = pairs_.find_failure();
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->rank, Rank(1));
  EXPECT_EQ(failure->message, "rank 1: NCCL between it and rank 0: ncclSend: a fake failure");
  pairs_.abort();
  expect_all(State::kIdle);
  EXPECT_FALSE(pairs_.find_failure());
  EXPECT_EQ(table->aborted, 4);
  table->send_result = 0;
  connect();
  expect_all(State::kOpen);
}

TEST_F(NcclPairsTest, AnErrorThatNcclReportsLaterIsNamed) {
  connect();
  EXPECT_FALSE(pairs_.find_failure());
  table->async_error = NcclLibrary::kInProgress;
  EXPECT_FALSE(pairs_.find_failure());
  table->async_error = 6;
  EXPECT_EQ(pairs_.find_failure()->rank, Rank(1));
}

TEST_F(NcclPairsTest, ARefusalLeavesNoCommunicator) {
  table->init_result = 5;
  EXPECT_ERROR(connect(), ArgumentError, "ncclCommInitRank: a fake failure");
  expect_all(State::kIdle);
}

TEST_F(NcclPairsTest, ACommunicatorThatComesTooLateIsAborted) {
  table->hangs = true;
  EXPECT_ERROR(connect(0, std::chrono::milliseconds(100)), TimeoutError,
               "rank 1 to connect over NCCL");
  expect_all(State::kIdle);
  table->hangs = false;
  const auto deadline = Deadline::after(std::chrono::seconds(20));
  while (table->aborted == 0 && !deadline.has_passed()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(table->aborted, 1);
  EXPECT_EQ(table->created, 1);
  expect_all(State::kIdle);
}

TEST_F(NcclPairsTest, ClosingDestroysEachCommunicatorOnce) {
  connect();
  pairs_.close(std::chrono::seconds(20));
  expect_all(State::kIdle);
  EXPECT_EQ(table->destroyed, 4);
  pairs_.close(std::chrono::seconds(20));
  EXPECT_EQ(table->destroyed, 4);
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
