#include "stagecraft/base/assert.h"

#include <gtest/gtest.h>

#include "stagecraft/base/index.h"
#include "stagecraft/base/indexed_vector.h"

namespace stagecraft {
namespace {

TEST(Assert, PassesWhatHolds) {
  int calls = 0;
  SC_ASSERT(++calls == 1);
  EXPECT_EQ(calls, 1);  // assertions are on in builds with tests
}

TEST(AssertDeathTest, EndsTheProcessAndNamesTheCondition) {
  EXPECT_DEATH(SC_ASSERT(1 + 1 == 3),
               "assert_test.cpp:[0-9]+: failed: SC_ASSERT\\(1 \\+ 1 == 3\\)");
}

TEST(AssertDeathTest, AnIndexBeyondAVectorIsFound) {
  IndexedVector<StageId, int> costs(2);
  EXPECT_DEATH(costs[StageId(2)] = 1, "contains\\(index\\)");
  EXPECT_DEATH(costs[StageId(-1)] = 1, "contains\\(index\\)");
}

}  // namespace
}  // namespace stagecraft
