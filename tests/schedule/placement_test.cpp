#include "stagecraft/schedule/placement.h"

#include "stagecraft/base/error.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

TEST(Placement, LoopsAndZigzags) {
  EXPECT_EQ(to_string(Placement::loop(2, 5)), "0 1 0 1 0");
  EXPECT_EQ(to_string(Placement::v(4, 12)), "0 1 2 3 3 2 1 0 0 1 2 3");
  EXPECT_EQ(Placement::from_style("v", 2, 4), Placement::v(2, 4));
  EXPECT_EQ(to_string(Placement::v(1, 3)), "0 0 0");
}

TEST(Placement, HasItsInverse) {
  const Placement v = Placement::v(2, 4);
  EXPECT_THAT(v.stages(Rank(0)), testing::ElementsAre(StageId(0), StageId(3)));
  EXPECT_THAT(v.stages(Rank(1)), testing::ElementsAre(StageId(1), StageId(2)));
  for (int32_t s = 0; s < 4; ++s) {
    EXPECT_THAT(v.stages(v.get_rank(StageId(s))), testing::Contains(StageId(s)));
  }
}

TEST(Placement, TakesAnyOther) {
  const Placement uneven = Placement::of({Rank(0), Rank(0), Rank(1), std::nullopt, Rank(0)}, 2);
  EXPECT_EQ(to_string(uneven), "0 0 1 - 0");
  EXPECT_THAT(uneven.stages(Rank(0)), testing::ElementsAre(StageId(0), StageId(1), StageId(4)));
  EXPECT_EQ(uneven.find_rank(StageId(3)), std::nullopt);
  EXPECT_EQ(uneven.find_rank(StageId(9)), std::nullopt);
  EXPECT_ERROR(uneven.get_rank(StageId(3)), ArgumentError, "no rank holds stage 3");
  EXPECT_ERROR(uneven.get_rank(StageId(5)), ArgumentError, "there is no stage 5");
  EXPECT_ERROR(uneven.stages(Rank(2)), ArgumentError, "there is no rank 2; there are 2 ranks");
}

TEST(Placement, RefusesWhatCannotBePlaced) {
  EXPECT_ERROR(Placement::loop(0, 4), ArgumentError, "at least 1 rank, got 0");
  EXPECT_ERROR(Placement::loop(4, 3), ArgumentError, "4 ranks need at least 4 stages");
  EXPECT_ERROR(Placement::v(4, 10), ArgumentError, "got 10; nearest: 8 or 12");
  EXPECT_ERROR(Placement::from_style("spiral", 2, 2), ArgumentError, "loop or v, got 'spiral'");
  EXPECT_ERROR(Placement::of({Rank(2)}, 2), ArgumentError, "stage 0 is placed on rank 2");
}

}  // namespace
}  // namespace stagecraft
