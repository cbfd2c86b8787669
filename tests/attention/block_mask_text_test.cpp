#include "stagecraft/attention/block_mask_text.h"

#include "stagecraft/attention/create_block_mask.h"
#include "stagecraft/base/error.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

TEST(BlockMaskText, DrawsABlockACharacter) {
  EXPECT_EQ(to_text(*create_block_mask(causal_mask(), 1, 1, 512, 512)),
            "BlockMask[1, 1, 512, 512] blocks 128x128 sparsity 37.5%\n"
            "(0, 0)\n"
            "░···\n"
            "█░··\n"
            "██░·\n"
            "███░\n");
}

TEST(BlockMaskText, DrawsSeveralHeadsAndCountsTheRest) {
  const MaskFn by_head = [](const at::Tensor&, const at::Tensor& h, const at::Tensor& q,
                            const at::Tensor& kv) { return q.ge(kv.add(h.mul(4))); };
  EXPECT_EQ(to_text(*create_block_mask(by_head, 2, 2, 8, 8, 4), {.max_pictures = 3}),
            "BlockMask[2, 2, 8, 8] blocks 4x4 sparsity 50.0%\n"
            "(0, 0)\n"
            "░·\n"
            "█░\n"
            "(0, 1)\n"
            "··\n"
            "░·\n"
            "(1, 0)\n"
            "░·\n"
            "█░\n"
            "and 1 more\n");
}

TEST(BlockMaskText, PutsSeveralBlocksIntoACharacter) {
  EXPECT_EQ(to_text(*create_block_mask(causal_mask(), 1, 1, 10, 10, 1), {.max_side = 4}),
            "BlockMask[1, 1, 10, 10] blocks 1x1 sparsity 45.0%\n"
            "3x3 blocks a character\n"
            "(0, 0)\n"
            "░···\n"
            "█░··\n"
            "██░·\n"
            "████\n");
}

TEST(BlockMaskText, DrawsNothingForAnEmptyMask) {
  EXPECT_EQ(to_text(*create_block_mask(causal_mask(), 1, 1, 0, 0)),
            "BlockMask[1, 1, 0, 0] blocks 128x128 sparsity 0.0%\n(0, 0)\n");
}

TEST(BlockMaskText, RefusesAPictureWithoutRoom) {
  const auto mask = create_block_mask(causal_mask(), 1, 1, 4, 4);
  EXPECT_ERROR(to_text(*mask, {.max_side = 0}), ArgumentError, "max_side > 0, got 4 and 0");
}

}  // namespace
}  // namespace stagecraft
