// Many steps over MPI, of ever changing shapes: nothing grows.

#include <random>

#include <gtest/gtest.h>

#include "tests/runtime/soak_rank.h"
#include "tests/support/mpi_ranks.h"

namespace stagecraft {
namespace {

TEST(Soak, MemoryAndFilesStayFlat) {
  MpiRanks::run(2, {}, [](Transport& transport) {
    const c10::IValue own(static_cast<int64_t>(std::random_device()()));
    const auto seed = static_cast<uint64_t>(
        transport.broadcast(own, Rank(0), Deadline::after(std::chrono::seconds(20))).toInt());
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
    EXPECT_EQ(soak(transport, soak_steps(), seed), "");
  });
}

}  // namespace
}  // namespace stagecraft
