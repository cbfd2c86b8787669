#include "stagecraft/base/indexed_vector.h"

#include <atomic>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

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

TEST(IndexedVector, AppendsAndReturnsTheIndex) {
  ByStage values;
  EXPECT_TRUE(values.empty());
  EXPECT_EQ(values.push_back(5), StageId(0));
  EXPECT_EQ(values.push_back(6), StageId(1));
  EXPECT_EQ(values[StageId(1)], 6);
  EXPECT_EQ(values, ByStage(std::vector<int>{5, 6}));
  EXPECT_NE(values, ByStage(2, 5));
}

TEST(IndexedVector, HoldsElementsThatDoNotCopy) {
  IndexedVector<StageId, std::unique_ptr<int>> values(1);
  EXPECT_EQ(values[StageId(0)], nullptr);
  values.push_back(std::make_unique<int>(3));
  EXPECT_EQ(*values[StageId(1)], 3);
  IndexedVector<StageId, std::atomic<int>> counters(2);
  ++counters[StageId(1)];
  EXPECT_EQ(counters[StageId(1)], 1);
}

}  // namespace
}  // namespace stagecraft
