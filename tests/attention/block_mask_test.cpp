#include "stagecraft/attention/block_mask.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "stagecraft/attention/create_block_mask.h"
#include "stagecraft/base/error.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

at::Tensor ints(std::vector<int32_t> values, std::vector<int64_t> shape) {
  return at::tensor(values, at::kInt).view(shape);
}

// Two rows and three columns:  ░·█
//                              ·█░
struct Lists {
  at::Tensor num = ints({1, 1}, {1, 1, 2});
  at::Tensor indices = ints({0, 1, 2, 2, 0, 1}, {1, 1, 2, 3});
  at::Tensor full_num = ints({1, 1}, {1, 1, 2});
  at::Tensor full_indices = ints({2, 0, 1, 1, 0, 2}, {1, 1, 2, 3});

  c10::intrusive_ptr<BlockMask> make(BlockSize block = 4,
                                     std::optional<MaskLengths> lengths = {}) const {
    return BlockMask::from_kv_blocks(num, indices, full_num, full_indices, block, {}, lengths);
  }
};

TEST(BlockMask, FromKvBlocksKeepsTheListsAndDerivesTheTransposedOnes) {
  const Lists lists;
  const auto mask = lists.make();
  EXPECT_TRUE(mask->kv_num_blocks().is_same(lists.num));
  EXPECT_TRUE(mask->kv_indices().is_same(lists.indices));
  EXPECT_TRUE(mask->full_kv_num_blocks().is_same(lists.full_num));
  EXPECT_TRUE(mask->full_kv_indices().is_same(lists.full_indices));
  EXPECT_TRUE(at::equal(mask->q_num_blocks(), ints({1, 0, 1}, {1, 1, 3})));
  EXPECT_TRUE(at::equal(mask->q_indices(), ints({0, 1, 0, 1, 1, 0}, {1, 1, 3, 2})));
  EXPECT_TRUE(at::equal(mask->full_q_num_blocks(), ints({0, 1, 1}, {1, 1, 3})));
  EXPECT_TRUE(at::equal(mask->full_q_indices(), ints({0, 1, 1, 0, 0, 1}, {1, 1, 3, 2})));
  EXPECT_TRUE(at::equal(mask->to_dense(), ints({1, 0, 1, 0, 1, 1}, {1, 1, 2, 3})));
}

TEST(BlockMask, WithoutFullListsNoBlockIsFull) {
  const Lists lists;
  const auto mask = BlockMask::from_kv_blocks(lists.num, lists.indices, {}, {}, 4);
  EXPECT_FALSE(mask->has_full_blocks());
  EXPECT_FALSE(mask->full_kv_indices().defined());
  EXPECT_FALSE(mask->full_q_num_blocks().defined());
  EXPECT_TRUE(at::equal(mask->to_dense(), ints({1, 0, 0, 0, 0, 1}, {1, 1, 2, 3})));
  EXPECT_TRUE(lists.make()->has_full_blocks());
}

TEST(BlockMask, LengthsAreThoseOfWholeBlocksUnlessGiven) {
  EXPECT_EQ(Lists().make()->lengths(), (MaskLengths{8, 12}));
  EXPECT_EQ(Lists().make(4, MaskLengths{7, 9})->lengths(), (MaskLengths{7, 9}));
  EXPECT_EQ(Lists().make({2, 5})->shape(), (std::array<int64_t, 4>{1, 1, 4, 15}));
}

TEST(BlockMask, SparsityCountsWholeBlocks) {
  EXPECT_DOUBLE_EQ(Lists().make()->sparsity(), 100.0 * (1 - 4.0 / 6));
  // A matrix of 5 x 9 has six blocks of 4 x 4, like one of 8 x 12.
  EXPECT_DOUBLE_EQ(Lists().make(4, MaskLengths{5, 9})->sparsity(), 100.0 * (1 - 4.0 / 6));
  EXPECT_EQ(create_block_mask(causal_mask(), 1, 1, 0, 4)->sparsity(), 0);
}

TEST(BlockMask, DescribesItselfInOneLine) {
  EXPECT_EQ(create_block_mask(causal_mask(), 2, 1, 512, 512)->describe(),
            "BlockMask[2, 1, 512, 512] blocks 128x128 sparsity 37.5%");
  EXPECT_EQ(Lists().make({2, 5})->describe(), "BlockMask[1, 1, 4, 15] blocks 2x5 sparsity 33.3%");
}

TEST(BlockMask, IsALeafOfATree) {
  const auto mask = Lists().make();
  const c10::IValue leaf = make_opaque(mask);
  EXPECT_EQ(find_opaque<BlockMask>(leaf).get(), mask.get());
  EXPECT_FALSE(find_opaque<BlockMask>(c10::IValue(3)).defined());
}

TEST(BlockMask, MovesToADevice) {
  const auto mask = Lists().make();
  const auto moved = mask->to(at::kMeta);
  EXPECT_EQ(moved->device(), at::kMeta);
  EXPECT_EQ(moved->full_q_indices().device(), at::kMeta);
  EXPECT_EQ(moved->describe(), mask->describe());
  EXPECT_EQ(moved->grid().kinds(), mask->grid().kinds());
  EXPECT_EQ(mask->device(), at::kCPU);
}

TEST(BlockMask, TailOfTheIndicesIsNotLookedAt) {
  Lists lists;
  lists.indices = ints({0, 77, -3, 2, 2, 2}, {1, 1, 2, 3});
  EXPECT_TRUE(at::equal(lists.make()->to_dense(), Lists().make()->to_dense()));
}

TEST(BlockMask, StridedListsAreRead) {
  Lists lists;
  lists.indices = lists.indices.transpose(2, 3).contiguous().transpose(2, 3);
  ASSERT_FALSE(lists.indices.is_contiguous());
  EXPECT_TRUE(at::equal(lists.make()->to_dense(), Lists().make()->to_dense()));
}

TEST(BlockMask, RefusesListsOfTheWrongKind) {
  Lists lists;
  lists.num = lists.num.to(at::kLong);
  EXPECT_ERROR(
      lists.make(), ArgumentError,
      "kv_num_blocks must be int32 of shape [batch, heads, rows], got Tensor[1, 1, 2] int64");
  lists = {};
  lists.num = lists.num.view({1, 2});
  EXPECT_ERROR(lists.make(), ArgumentError, "got Tensor[1, 2] int32");
  lists = {};
  lists.indices = lists.indices.view({2, 3});
  EXPECT_ERROR(lists.make(), ArgumentError,
               "kv_indices must be int32 of shape [batch, heads, rows, columns], got Tensor[2, 3]");
  lists = {};
  lists.indices = ints({0, 1, 2}, {1, 1, 1, 3});
  EXPECT_ERROR(lists.make(), ArgumentError, "the first three sizes must agree");
  lists = {};
  lists.num = at::Tensor();
  EXPECT_ERROR(lists.make(), ArgumentError, "needs both kv_num_blocks and kv_indices");
}

TEST(BlockMask, RefusesHalfOfTheFullPair) {
  Lists lists;
  lists.full_num = at::Tensor();
  EXPECT_ERROR(lists.make(), ArgumentError,
               "needs both full_kv_num_blocks and full_kv_indices, got Tensor undefined");
  lists = {};
  lists.full_indices = at::Tensor();
  EXPECT_ERROR(lists.make(), ArgumentError, "needs both full_kv_num_blocks and full_kv_indices");
}

TEST(BlockMask, RefusesAFullPairOfAnotherShape) {
  Lists lists;
  lists.full_indices = ints({0, 1, 1, 0}, {1, 1, 2, 2});
  EXPECT_ERROR(lists.make(), ArgumentError, "must have the same shape");
}

TEST(BlockMask, RefusesCountsAndColumnsOutOfRange) {
  Lists lists;
  lists.num = ints({1, 4}, {1, 1, 2});
  EXPECT_ERROR(lists.make(), ArgumentError, "kv_num_blocks[0, 0, 1] is 4, expected 0 to 3");
  lists.num = ints({-1, 1}, {1, 1, 2});
  EXPECT_ERROR(lists.make(), ArgumentError, "kv_num_blocks[0, 0, 0] is -1");
  lists = {};
  lists.full_indices = ints({3, 0, 1, 1, 0, 2}, {1, 1, 2, 3});
  EXPECT_ERROR(lists.make(), ArgumentError, "full_kv_indices[0, 0, 0, 0] is 3, expected 0 to 2");
}

TEST(BlockMask, RefusesABlockThatIsNamedTwice) {
  Lists lists;
  lists.num = ints({2, 1}, {1, 1, 2});
  lists.indices = ints({0, 0, 1, 2, 0, 1}, {1, 1, 2, 3});
  EXPECT_ERROR(lists.make(), ArgumentError,
               "kv_indices[0, 0, 0, 1] names column 0 of this row again");
  lists = {};
  lists.full_indices = ints({0, 1, 2, 1, 0, 2}, {1, 1, 2, 3});
  EXPECT_ERROR(lists.make(), ArgumentError, "full_kv_indices[0, 0, 0, 0] names column 0");
}

TEST(BlockMask, RefusesBlocksWithoutASize) {
  EXPECT_ERROR(Lists().make({0, 4}), ArgumentError, "block sizes must be positive, got 0x4");
  EXPECT_ERROR(Lists().make({4, -1}), ArgumentError, "got 4x-1");
}

TEST(BlockMask, RefusesLengthsWithAnotherNumberOfBlocks) {
  EXPECT_ERROR(Lists().make(4, MaskLengths{9, 12}), ArgumentError,
               "9 queries and 12 keys in blocks of 4x4 make 3 rows and 3 columns, but 2 rows and 3 "
               "columns");
  EXPECT_ERROR(Lists().make(4, MaskLengths{8, 8}), ArgumentError, "2 rows and 2 columns");
  EXPECT_ERROR(Lists().make(4, MaskLengths{-1, 12}), ArgumentError, "must not be negative");
}

}  // namespace
}  // namespace stagecraft
