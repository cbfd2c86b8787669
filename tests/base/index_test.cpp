#include "stagecraft/base/index.h"

#include <sstream>
#include <type_traits>
#include <unordered_set>

#include <gtest/gtest.h>

namespace stagecraft {
namespace {

static_assert(!std::is_convertible_v<StageId, Rank>);
static_assert(!std::is_constructible_v<Rank, StageId>);
static_assert(!std::is_convertible_v<int, Rank>);
static_assert(!std::is_convertible_v<Rank, int>);
static_assert(sizeof(MicrobatchId) == sizeof(int32_t));

TEST(Index, OrdersCountsAndPrints) {
  StageId stage(2);
  EXPECT_LT(stage, StageId(3));
  EXPECT_EQ(++stage, StageId(3));
  EXPECT_EQ(stage + 2, StageId(5));
  EXPECT_EQ(stage - 3, StageId());
  std::ostringstream out;
  out << stage;
  EXPECT_EQ(out.str(), "3");
  EXPECT_EQ(to_string(Rank(12)), "12");
}

TEST(Index, IsAHashKey) {
  const std::unordered_set<MicrobatchId> seen = {MicrobatchId(1), MicrobatchId(1), MicrobatchId(2)};
  EXPECT_EQ(seen.size(), 2u);
}

}  // namespace
}  // namespace stagecraft
