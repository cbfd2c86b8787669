#include "stagecraft/base/indexed_vector.h"

#include <numeric>
#include <utility>

#include <gtest/gtest.h>

#include "stagecraft/base/index.h"

namespace stagecraft {
namespace {

template <typename Vector, typename I>
concept TakesIndex = requires(Vector vector, I index) {
  vector[index];
};
using ByStage = IndexedVector<StageId, int>;
static_assert(TakesIndex<ByStage, StageId>);
static_assert(!TakesIndex<ByStage, Rank>);
static_assert(!TakesIndex<ByStage, int>);

TEST(IndexedVector, FindsElementsByIndex) {
  ByStage values(3, 7);
  values[StageId(1)] = 2;
  ++values[StageId(2)];
  EXPECT_EQ(values[StageId(0)], 7);
  EXPECT_EQ(std::as_const(values)[StageId(1)], 2);
  EXPECT_EQ(std::accumulate(values.begin(), values.end(), 0), 7 + 2 + 8);
  EXPECT_EQ(values.size(), 3);
  EXPECT_TRUE(values.contains(StageId(2)));
  EXPECT_FALSE(values.contains(StageId(3)));
  EXPECT_EQ(ByStage().size(), 0);
}

}  // namespace
}  // namespace stagecraft
