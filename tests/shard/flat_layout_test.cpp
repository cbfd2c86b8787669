#include "stagecraft/shard/flat_layout.h"

#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace stagecraft {
namespace {

TEST(FlatLayout, EveryElementIsInOnePiece) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const auto members = static_cast<int32_t>(1 + random() % 5);
    std::vector<int64_t> numels(1 + random() % 6);
    for (int64_t& numel : numels) numel = static_cast<int64_t>(1 + random() % 3000);
    const FlatLayout layout(numels, members);
    std::vector<std::vector<int>> seen;
    for (const int64_t numel : numels) seen.emplace_back(static_cast<std::size_t>(numel), 0);
    for (int32_t m = 0; m < members; ++m) {
      int64_t end = 0;
      for (const ShardSegment& segment : layout.segments(m)) {
        EXPECT_GE(segment.at, end);
        end = segment.at + segment.size();
        EXPECT_EQ(segment.begin % kShardBlock, 0);
        EXPECT_TRUE(segment.end % kShardBlock == 0 || segment.end == numels[segment.parameter]);
        EXPECT_EQ(m * layout.piece() + segment.at,
                  layout.offset(segment.parameter) + segment.begin);
        for (int64_t e = segment.begin; e < segment.end; ++e) {
          ++seen[segment.parameter][static_cast<std::size_t>(e)];
        }
      }
      EXPECT_LE(end, layout.piece());
    }
    for (const auto& parameter : seen) {
      for (const int count : parameter) ASSERT_EQ(count, 1);
    }
  }
}

TEST(FlatLayout, PaddingIsLessThanABlockForEachParameterAndPiece) {
  const FlatLayout layout({1000, 1, 256, 4096}, 3);
  EXPECT_EQ(layout.offset(1), 1024);
  EXPECT_EQ(layout.offset(2), 1280);
  EXPECT_EQ(layout.offset(3), 1536);
  EXPECT_EQ(layout.whole(), 5632 + 512);
  EXPECT_EQ(layout.piece(), 2048);
}

TEST(FlatLayout, ARangeOfAPieceHasItsSegmentsOnly) {
  const FlatLayout layout({1024, 1024}, 2);
  ASSERT_EQ(layout.piece(), 1024);
  const std::vector<ShardSegment> part = layout.segments(1, 100, 300);
  ASSERT_EQ(part.size(), 1U);
  EXPECT_EQ(part[0], (ShardSegment{.parameter = 1, .begin = 100, .end = 300, .at = 100}));
}

}  // namespace
}  // namespace stagecraft
