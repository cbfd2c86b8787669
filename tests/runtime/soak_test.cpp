// Many steps over processes, of ever changing shapes: nothing grows.

#include <random>

#include <gtest/gtest.h>

#include "tests/runtime/soak_rank.h"
#include "tests/support/gloo_ranks.h"

namespace stagecraft {
namespace {

TEST(Soak, MemoryAndFilesStayFlat) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  const auto limit = std::chrono::seconds(60 + soak_steps());
  const GlooRanks world(2);
  Processes processes(
      2,
      [&](int32_t i) {
        const auto joined = join_gloo(world.options(i));
        EXPECT_EQ(soak(*joined, soak_steps(), seed), "");
      },
      limit);
  for (const auto& end : processes.wait()) {
    EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
  }
}

}  // namespace
}  // namespace stagecraft
