// The progress of MPI in a process, with a plug-in that stands for an MPI.

#include "stagecraft/transport/mpi/mpi_progress.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <pthread.h>

#include <ATen/ops/ones.h>

#include "tests/support/expect_error.h"
#include "tests/support/fake_mpi.h"
#include "tests/transport/run_ranks.h"

namespace stagecraft::detail {
namespace {

bool until(const std::function<bool()>& holds) {
  const auto limit = soon();
  while (!holds() && !limit.has_passed()) std::this_thread::yield();
  return holds();
}

at::Tensor some_bytes(int64_t size = 100) {
  return at::ones({size}, at::kByte);
}

std::string name_of_this_thread() {
  std::array<char, 16> name{};
  pthread_getname_np(pthread_self(), name.data(), name.size());
  return name.data();
}

// All tests share the progress, which lives as long as the process.
class MpiProgressTest : public testing::Test {
 protected:
  MpiProgressTest() { fake_.reset(); }
  ~MpiProgressTest() override {
    EXPECT_FALSE(fake_.has_overlapped()) << "two threads were inside MPI";
    fake_.end_all();
    EXPECT_TRUE(until([&] { return progress_.advance(); }));
  }

  static MpiProgress& start() {
    setenv("STAGECRAFT_MPI", "openmpi", 1);
    setenv("STAGECRAFT_MPI_PLUGIN", SC_FAKE_MPI, 1);
    return MpiProgress::get(soon());
  }

  // A call that stays inside MPI until it is released. Returns when it is there.
  void block() {
    const auto is_inside = std::make_shared<std::atomic<bool>>(false);
    const auto call = [is_inside, may_end = may_end_.get_future().share()] {
      *is_inside = true;
      may_end.wait_for(std::chrono::seconds(20));
    };
    EXPECT_FALSE(progress_.run(call, soon(), [&] { return is_inside->load(); }));
  }
  void release() {
    may_end_.set_value();
    EXPECT_TRUE(until([&] { return !progress_.is_stuck(); }));
  }

  MpiProgress& progress_ = start();
  FakeMpi& fake_ = FakeMpi::get();
  int group_of_tests_ = 0;
  int other_group_of_tests_ = 0;
  void* const group_ = &group_of_tests_;
  void* const other_group_ = &other_group_of_tests_;
  std::promise<void> may_end_;
};

TEST_F(MpiProgressTest, IsThatOfThePlugin) {
  EXPECT_EQ(&progress_.plugin(), &FakeMpi::plugin());
  EXPECT_EQ(progress_.kind(), MpiKind::kOpenMpi);
  EXPECT_EQ(progress_.facts().num_ranks, 2);
  EXPECT_EQ(&MpiProgress::get(soon()), &progress_);
}

TEST_F(MpiProgressTest, PostsWhatItIsGiven) {
  const auto send = progress_.send(group_, Rank(1), 7, some_bytes(100));
  const auto receive = progress_.receive(other_group_, Rank(1), 8, some_bytes(200));
  ASSERT_TRUE(until([&] { return fake_.posted().size() == 2; }));
  EXPECT_TRUE(fake_.posted()[0].is_send);
  EXPECT_EQ(fake_.posted()[0].group, group_);
  EXPECT_EQ(fake_.posted()[0].other, 1);
  EXPECT_EQ(fake_.posted()[0].tag, 7);
  EXPECT_EQ(fake_.posted()[0].size, 100U);
  EXPECT_FALSE(fake_.posted()[1].is_send);
  EXPECT_EQ(fake_.posted()[1].group, other_group_);
  EXPECT_EQ(fake_.posted()[1].tag, 8);
  EXPECT_EQ(fake_.posted()[1].size, 200U);
  EXPECT_FALSE(send->is_over());
  EXPECT_FALSE(receive->is_over());
}

TEST_F(MpiProgressTest, ATransferThatEndsAtOnceIsDone) {
  fake_.set_answer(FakeMpi::Answer::kDone);
  const auto work = progress_.send(group_, Rank(1), 7, some_bytes());
  ASSERT_TRUE(until([&] { return work->is_over(); }));
  EXPECT_TRUE(work->is_done());
  EXPECT_TRUE(work->wait());
}

TEST_F(MpiProgressTest, ATransferThatIsNotPostedFailsWithTheReason) {
  fake_.set_answer(FakeMpi::Answer::kFailed);
  const auto work = progress_.send(group_, Rank(1), 7, some_bytes());
  ASSERT_TRUE(until([&] { return work->is_over(); }));
  EXPECT_FALSE(work->is_done());
  EXPECT_ERROR(work->wait(), std::runtime_error, "no such rank");
}

TEST_F(MpiProgressTest, ThreadsThatWaitLearnHowTheirTransfersEnd) {
  // Small transfers, and those that keep the progress thread awake.
  for (const uint64_t size : {uint64_t{100}, MpiWork::kLarge}) {
    fake_.reset();
    const auto good = progress_.send(group_, Rank(1), 7, some_bytes(static_cast<int64_t>(size)));
    const auto bad = progress_.receive(group_, Rank(1), 7, some_bytes(static_cast<int64_t>(size)));
    ASSERT_TRUE(until([&] { return fake_.num_in_progress() == 2; }));
    auto waits = std::async(std::launch::async, [&] { return good->wait(); });
    auto fails = std::async(std::launch::async, [&] { return bad->wait_busily(); });
    fake_.end(0);
    fake_.end(1, /*is_failed=*/true);
    for (auto* const ending : {&waits, &fails}) {
      EXPECT_EQ(ending->wait_for(std::chrono::seconds(20)), std::future_status::ready);
    }
    // So that this test ends, too, if a thread was not woken.
    good->interrupt();
    bad->interrupt();
    EXPECT_TRUE(waits.get());
    EXPECT_ERROR(fails.get(), std::runtime_error, "MPI failed to transfer it");
    EXPECT_TRUE(good->is_done());
    EXPECT_FALSE(bad->is_done());
  }
}

TEST_F(MpiProgressTest, AnInterruptEndsOneWait) {
  const auto work = progress_.receive(group_, Rank(1), 7, some_bytes());
  ASSERT_TRUE(until([&] { return fake_.num_in_progress() == 1; }));
  const auto wait = [&] { return work->wait(); };
  auto first = std::async(std::launch::async, wait);
  work->interrupt();
  EXPECT_EQ(first.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_FALSE(work->is_over());
  auto second = std::async(std::launch::async, wait);
  // A wait that begins now would end at once if the interrupt still counted.
  second.wait_for(std::chrono::milliseconds(20));
  fake_.end_all();
  EXPECT_FALSE(first.get());
  EXPECT_TRUE(second.get());
}

TEST_F(MpiProgressTest, TheMemoryIsKeptWhileMpiUsesIt) {
  const std::weak_ptr<MpiWork> work = progress_.receive(group_, Rank(1), 7, some_bytes());
  ASSERT_TRUE(until([&] { return fake_.num_in_progress() == 1; }));
  progress_.give_up(group_, Rank(1));
  EXPECT_FALSE(work.expired());
  fake_.end_all();
  EXPECT_TRUE(until([&] { return work.expired(); }));
}

TEST_F(MpiProgressTest, TheThreadInsideMpiPostsForOthers) {
  std::future<void> posting;
  EXPECT_TRUE(progress_.run_here([&] {
    posting = std::async(std::launch::async, [&] {
      for (const int32_t tag : {7, 8, 9}) progress_.send(group_, Rank(1), tag, some_bytes());
    });
    EXPECT_EQ(posting.wait_for(std::chrono::seconds(20)), std::future_status::ready)
        << "a thread that sends waits for a thread that is inside MPI";
    EXPECT_TRUE(fake_.posted().empty());
  }));
  ASSERT_TRUE(until([&] { return fake_.posted().size() == 3; }));
  for (const int32_t i : {0, 1, 2}) {
    EXPECT_EQ(fake_.posted()[static_cast<std::size_t>(i)].tag, 7 + i) << "they keep their order";
  }
}

TEST_F(MpiProgressTest, ThreadsPostAndPollOneAtATime) {
  constexpr int kThreads = 4;
  constexpr int kSends = 200;
  fake_.set_answer(FakeMpi::Answer::kDone);
  std::atomic<int> done{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kSends; ++i) {
        const auto work = progress_.send(group_, Rank(1), t, some_bytes(i + 1));
        progress_.advance();
        if (until([&] { return work->is_over(); })) ++done;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(done, kThreads * kSends);
  // The transfers of one thread keep their order.
  std::vector<uint64_t> sizes(kThreads);
  for (const auto& transfer : fake_.posted()) {
    EXPECT_EQ(transfer.size, ++sizes[static_cast<std::size_t>(transfer.tag)]);
  }
}

TEST_F(MpiProgressTest, AdvanceDoesNotWaitForAThreadInsideMpi) {
  EXPECT_TRUE(progress_.run_here([&] {
    auto other = std::async(std::launch::async, [&] { return progress_.advance(); });
    EXPECT_FALSE(other.get());
  }));
}

TEST_F(MpiProgressTest, RunsCallsOnTheProgressThreadInTheirOrder) {
  std::vector<int> order;
  std::string name;
  EXPECT_TRUE(progress_.run([&] { order.push_back(1); }, soon()));
  EXPECT_TRUE(progress_.run(
      [&] {
        order.push_back(2);
        name = name_of_this_thread();
      },
      soon()));
  EXPECT_EQ(order, (std::vector{1, 2}));
  EXPECT_EQ(name, "sc mpi");
  EXPECT_FALSE(progress_.is_stuck());
}

TEST_F(MpiProgressTest, IsStuckWhileACallIsLate) {
  const auto call = [may_end = may_end_.get_future().share()] {
    may_end.wait_for(std::chrono::seconds(20));
  };
  EXPECT_FALSE(progress_.run(call, at_once()));
  EXPECT_TRUE(progress_.is_stuck());
  release();
  EXPECT_TRUE(progress_.run_here([] {}));
}

// The end of one late call says nothing about the other.
TEST_F(MpiProgressTest, IsStuckUntilTheLastLateCallReturns) {
  std::promise<void> first_may_end;
  const auto waiting_for = [](std::promise<void>& end) {
    return [end = end.get_future().share()] { end.wait_for(std::chrono::seconds(20)); };
  };
  std::promise<void> second_begins;
  EXPECT_FALSE(progress_.run(waiting_for(first_may_end), at_once()));
  EXPECT_FALSE(progress_.run(
      [&second_begins, wait = waiting_for(may_end_)] {
        second_begins.set_value();
        wait();
      },
      at_once()));
  first_may_end.set_value();
  EXPECT_EQ(second_begins.get_future().wait_for(std::chrono::seconds(20)),
            std::future_status::ready);
  EXPECT_TRUE(progress_.is_stuck());
  release();
  EXPECT_TRUE(until([&] { return !progress_.is_stuck(); }));
}

TEST_F(MpiProgressTest, NoThreadWaitsForAStuckOne) {
  block();
  EXPECT_TRUE(progress_.is_stuck());
  EXPECT_FALSE(progress_.run_here([] { ADD_FAILURE() << "two threads are inside MPI"; }));
  EXPECT_FALSE(progress_.advance());
  const auto work = progress_.send(group_, Rank(1), 7, some_bytes());
  progress_.give_up(group_, Rank(1));
  progress_.open_group();
  progress_.close_group(group_, /*is_lost=*/false, soon());
  EXPECT_TRUE(fake_.freed().empty());
  EXPECT_TRUE(fake_.posted().empty());
  release();
  EXPECT_TRUE(until([&] { return fake_.posted().size() == 1; })) << "the send was not posted";
}

TEST_F(MpiProgressTest, GivesUpTransfersOfOneGroupWithOneRank) {
  const auto send = progress_.send(group_, Rank(1), 7, some_bytes());
  const auto receive = progress_.receive(group_, Rank(1), 7, some_bytes());
  const auto of_other_rank = progress_.receive(group_, Rank(2), 7, some_bytes());
  const auto of_other_group = progress_.receive(other_group_, Rank(1), 7, some_bytes());
  auto waits = std::async(std::launch::async, [&] { return receive->wait(); });
  progress_.give_up(group_, Rank(1));
  EXPECT_EQ(waits.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  receive->interrupt();
  EXPECT_ERROR(waits.get(), std::runtime_error, "the connection is lost");
  ASSERT_TRUE(send->is_over());
  EXPECT_ERROR(send->wait(), std::runtime_error, "the connection is lost");
  EXPECT_FALSE(of_other_rank->is_over());
  EXPECT_FALSE(of_other_group->is_over());
}

TEST_F(MpiProgressTest, ClosingAGroupCancelsItsReceivesAndFreesIt) {
  const auto receive = progress_.receive(group_, Rank(1), 7, some_bytes());
  const auto other = progress_.receive(other_group_, Rank(1), 7, some_bytes());
  progress_.open_group();
  progress_.close_group(group_, /*is_lost=*/false, soon());
  EXPECT_EQ(fake_.cancelled(), std::vector<std::size_t>{0});
  EXPECT_EQ(fake_.freed(), std::vector{group_});
  EXPECT_TRUE(receive->is_over());
  EXPECT_FALSE(other->is_over());
}

TEST_F(MpiProgressTest, ClosingAGroupWaitsForItsSends) {
  const auto send = progress_.send(group_, Rank(1), 7, some_bytes());
  ASSERT_TRUE(until([&] { return fake_.num_in_progress() == 1; }));
  progress_.open_group();
  auto closing = std::async(std::launch::async, [&] {
    progress_.close_group(group_, /*is_lost=*/false, soon());
    return send->is_done();
  });
  fake_.end_all();
  EXPECT_TRUE(closing.get());
  EXPECT_TRUE(fake_.cancelled().empty());
  EXPECT_EQ(fake_.freed(), std::vector{group_});
}

TEST_F(MpiProgressTest, AGroupWhoseSendsDoNotEndIsNotFreed) {
  const auto send = progress_.send(group_, Rank(1), 7, some_bytes());
  progress_.open_group();
  progress_.close_group(group_, /*is_lost=*/false, at_once());
  EXPECT_TRUE(fake_.freed().empty());
  EXPECT_FALSE(send->is_over());
}

TEST_F(MpiProgressTest, AGroupWithALostRankIsNotFreedAndNotWaitedFor) {
  const auto send = progress_.send(group_, Rank(1), 7, some_bytes());
  const auto receive = progress_.receive(group_, Rank(1), 7, some_bytes());
  progress_.open_group();
  const auto limit = soon();
  progress_.close_group(group_, /*is_lost=*/true, limit);
  EXPECT_FALSE(limit.has_passed());
  EXPECT_EQ(fake_.cancelled(), std::vector<std::size_t>{1});
  EXPECT_FALSE(send->is_over());
  // Nor without a transfer in progress.
  progress_.open_group();
  progress_.close_group(other_group_, /*is_lost=*/true, limit);
  EXPECT_TRUE(fake_.freed().empty());
}

}  // namespace
}  // namespace stagecraft::detail
