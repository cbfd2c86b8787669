#include "stagecraft/transport/local/local_world.h"

#include <array>
#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <pthread.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>

#include "stagecraft/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/transport/run_ranks.h"

namespace stagecraft {
namespace {

TEST(LocalWorld, RunsTheBodyOnceForEachRankOnAThreadOfItsOwn) {
  LocalWorld world(3);
  EXPECT_EQ(world.num_ranks(), 3);
  std::array<std::thread::id, 3> threads;
  world.run([&](Transport& rank) {
    EXPECT_EQ(rank.num_ranks(), 3);
    threads[static_cast<std::size_t>(rank.rank().value())] = std::this_thread::get_id();
    std::array<char, 16> name{};
    pthread_getname_np(pthread_self(), name.data(), name.size());
    EXPECT_EQ(name.data(), "rank " + to_string(rank.rank()));
  });
  for (const auto& thread : threads) EXPECT_NE(thread, std::thread::id());
  EXPECT_NE(threads[0], threads[1]);
  EXPECT_NE(threads[0], std::this_thread::get_id());
}

TEST(LocalWorld, HandsTensorsOverWithoutACopy) {
  LocalWorld world(2);
  const auto tensor = at::ones({4});
  world.transport(Rank(0)).post_send(Rank(1), values_of(0), tensor);
  auto& one = world.transport(Rank(1));
  const auto receive = one.post_receive(Rank(0), values_of(0));
  EXPECT_TRUE(one.wait_receive(receive, soon()).value.toTensor().is_same(tensor));
}

TEST(LocalWorld, ThrowsWhatTheFirstRankThatFailedThrew) {
  LocalWorld world(4);
  // The others' errors are there before that of rank 2, which was the first.
  std::atomic<int> others{0};
  EXPECT_ERROR(world.run([&](Transport& rank) {
    if (rank.rank() == Rank(2)) {
      rank.abort({Rank(2), "row 7"});
      const auto limit = soon();
      while (others < 3 && !limit.has_passed()) std::this_thread::yield();
      throw std::out_of_range("row 7 is missing");
    }
    try {
      rank.barrier(soon());
    } catch (...) {
      ++others;
      throw;
    }
  }),
               std::out_of_range, "row 7 is missing");
  EXPECT_EQ(world.transport(Rank(0)).abort_reason()->rank, Rank(2));
}

TEST(LocalWorld, AFailingRankFreesTheOthersAndTheNextRunMayRecover) {
  LocalWorld world(3);
  const auto fail = [](Transport& rank) {
    if (rank.rank() == Rank(1)) throw std::runtime_error("out of memory");
    try {
      rank.barrier(soon());
      ADD_FAILURE() << "met rank 1";
    } catch (const PeerError& error) {
      EXPECT_STREQ(error.what(), "rank 1: out of memory");
      EXPECT_THROW(std::rethrow_exception(error.cause()), std::runtime_error);
      throw;
    }
  };
  EXPECT_ERROR(world.run(fail), std::runtime_error, "out of memory");
  EXPECT_ERROR(world.run([](Transport& rank) { rank.barrier(soon()); }), PeerError,
               "rank 1: out of memory");
  // A failure that has nothing to do with the old reason is the one that is thrown.
  EXPECT_ERROR(world.run([](Transport& rank) {
    if (rank.rank() == Rank(2)) throw std::logic_error("another");
  }),
               std::logic_error, "another");
  world.run([](Transport& rank) {
    rank.recover(soon());
    rank.barrier(soon());
  });
  EXPECT_EQ(world.transport(Rank(0)).abort_reason(), nullptr);
}

TEST(LocalWorld, CarriesExceptionsThatAreNone) {
  LocalWorld world(2);
  EXPECT_THROW(world.run([](Transport& rank) {
    if (rank.rank() == Rank(0)) throw 7;
    rank.barrier(soon());
  }),
               int);
  EXPECT_EQ(world.transport(Rank(1)).abort_reason()->message,
            "unknown exception (not derived from std::exception)");
}

TEST(LocalWorld, EndsMayOutliveTheWorld) {
  std::unique_ptr<Transport> zero;
  std::unique_ptr<Transport> one;
  {
    LocalWorld world(2);
    zero = world.release(Rank(0));
    one = world.release(Rank(1));
    EXPECT_ERROR(world.transport(Rank(1)), ArgumentError, "the transport of rank 1 was released");
    EXPECT_ERROR(world.run([](Transport&) {}), ArgumentError,
                 "the transport of rank 0 was released");
  }
  zero->post_send(Rank(1), values_of(0), 5);
  const auto receive = one->post_receive(Rank(0), values_of(0));
  EXPECT_EQ(one->wait_receive(receive, soon()).value.toInt(), 5);
  const auto pending = one->post_receive(Rank(0), values_of(1));
  one.reset();
  EXPECT_TRUE(pending->is_done());
}

TEST(LocalWorld, RefusesWhatCannotBeMeant) {
  EXPECT_ERROR(LocalWorld(0), ArgumentError, "at least one rank, got 0");
  LocalWorld world(2);
  EXPECT_ERROR(world.transport(Rank(2)), ArgumentError, "there is no rank 2 among 2 ranks");
  EXPECT_ERROR(world.run(nullptr), ArgumentError, "expected a function");
}

}  // namespace
}  // namespace stagecraft
