#include "stagecraft/attention/block_mask_split.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>

#include "stagecraft/attention/create_block_mask.h"
#include "stagecraft/attention/flex_attention.h"
#include "stagecraft/base/error.h"
#include "tests/attention/reference.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

using reference::distance;

at::Tensor documents(int64_t batch, int64_t length) {
  at::Generator generator = reference::seeded(5);
  return std::get<0>(at::randint(0, 4, {batch, length}, generator, at::kLong).sort(-1));
}

TEST(SplitBlockMask, CutsAsTensorSplitDoes) {
  const auto mask = create_block_mask(document_mask(documents(6, 24)), 6, 1, 24, 24, 4);
  const auto chunks = split_block_mask(mask, 4);
  std::vector<int64_t> sizes;
  std::vector<std::vector<at::Tensor>> lists(8);
  for (const auto& chunk : chunks) {
    sizes.push_back(chunk->shape()[0]);
    EXPECT_EQ(chunk->block_size(), mask->block_size());
    EXPECT_EQ(chunk->lengths(), mask->lengths());
    const std::vector<at::Tensor> all = {chunk->kv_num_blocks(),      chunk->kv_indices(),
                                         chunk->full_kv_num_blocks(), chunk->full_kv_indices(),
                                         chunk->q_num_blocks(),       chunk->q_indices(),
                                         chunk->full_q_num_blocks(),  chunk->full_q_indices()};
    for (std::size_t i = 0; i < all.size(); ++i) lists[i].push_back(all[i]);
  }
  EXPECT_EQ(sizes, (std::vector<int64_t>{2, 2, 1, 1}));
  EXPECT_TRUE(at::equal(at::cat(lists[0]), mask->kv_num_blocks()));
  EXPECT_TRUE(at::equal(at::cat(lists[1]), mask->kv_indices()));
  EXPECT_TRUE(at::equal(at::cat(lists[2]), mask->full_kv_num_blocks()));
  EXPECT_TRUE(at::equal(at::cat(lists[3]), mask->full_kv_indices()));
  EXPECT_TRUE(at::equal(at::cat(lists[4]), mask->q_num_blocks()));
  EXPECT_TRUE(at::equal(at::cat(lists[5]), mask->q_indices()));
  EXPECT_TRUE(at::equal(at::cat(lists[6]), mask->full_q_num_blocks()));
  EXPECT_TRUE(at::equal(at::cat(lists[7]), mask->full_q_indices()));
}

TEST(SplitBlockMask, MaskFunctionsSeeTheBatchIndexOfTheWhole) {
  const at::Tensor ids = documents(6, 24);
  const auto mask = create_block_mask(document_mask(ids), 6, 1, 24, 24, 4);
  std::vector<at::Tensor> dense;
  for (const auto& chunk : split_block_mask(mask, 4)) {
    dense.push_back(create_mask(chunk->mask_fn(), chunk->shape()[0], 1, 24, 24));
  }
  EXPECT_TRUE(at::equal(at::cat(dense), create_mask(document_mask(ids), 6, 1, 24, 24)));
}

TEST(SplitBlockMask, AChunkCanBeSplitAgain) {
  const at::Tensor ids = documents(6, 24);
  const auto mask = create_block_mask(document_mask(ids), 6, 1, 24, 24, 4);
  const auto half = split_block_mask(mask, 2).back();
  const auto last = split_block_mask(half, 3).back();
  EXPECT_TRUE(at::equal(create_mask(last->mask_fn(), 1, 1, 24, 24),
                        create_mask(document_mask(ids[5]), 1, 1, 24, 24)));
}

TEST(SplitBlockMask, BatchOfOneIsSharedByAllChunks) {
  const auto mask = create_block_mask(causal_mask(), 1, 2, 16, 16, 4);
  const auto chunks = split_block_mask(mask, 3);
  ASSERT_EQ(chunks.size(), 3u);
  for (const auto& chunk : chunks) EXPECT_EQ(chunk.get(), mask.get());
}

TEST(SplitBlockMask, WithoutFullListsTheChunksHaveNone) {
  const auto whole = create_block_mask(document_mask(documents(4, 24)), 4, 1, 24, 24, 4);
  const auto mask = BlockMask::from_kv_blocks(whole->kv_num_blocks(), whole->kv_indices(), {}, {},
                                              4, whole->mask_fn());
  for (const auto& chunk : split_block_mask(mask, 2)) EXPECT_FALSE(chunk->has_full_blocks());
}

TEST(SplitBlockMask, ChunksAreWhatTheirListsSay) {
  const auto mask = create_block_mask(document_mask(documents(5, 24)), 5, 1, 24, 24, 4);
  for (const auto& chunk : split_block_mask(mask, 2)) {
    const auto again =
        BlockMask::from_kv_blocks(chunk->kv_num_blocks(), chunk->kv_indices(),
                                  chunk->full_kv_num_blocks(), chunk->full_kv_indices(), 4);
    EXPECT_EQ(chunk->grid().kinds(), again->grid().kinds());
    EXPECT_TRUE(at::equal(chunk->q_indices(), again->q_indices()));
    EXPECT_TRUE(at::equal(chunk->full_q_indices(), again->full_q_indices()));
    EXPECT_TRUE(at::equal(chunk->to_dense(), again->to_dense()));
  }
}

TEST(SplitBlockMask, RefusesMoreChunksThanMembers) {
  const auto mask = create_block_mask(causal_mask(), 3, 1, 16, 16, 4);
  EXPECT_ERROR(
      split_block_mask(mask, 4), ArgumentError,
      "BlockMask[3, 1, 16, 16] blocks 4x4 sparsity 37.5% cannot be split into 4 chunks: it "
      "has only 3 members in its batch");
  EXPECT_ERROR(split_block_mask(mask, 0), ArgumentError, "chunks must be positive, got 0");
  EXPECT_ERROR(split_block_mask({}, 2), ArgumentError, "no mask was given");
}

// The chunks of a step give the outputs and gradients of the whole batch.
void expect_same_attention(const c10::intrusive_ptr<BlockMask>& mask, int64_t batch, int64_t length,
                           int64_t chunks) {
  at::Generator generator = reference::seeded(11);
  const at::Tensor q = reference::leaf(reference::random(generator, {batch, 2, length, 8}));
  const at::Tensor k = reference::leaf(reference::random(generator, {batch, 2, length, 8}));
  const at::Tensor v = reference::leaf(reference::random(generator, {batch, 2, length, 8}));
  const at::Tensor weight = reference::random(generator, {batch, 2, length, 8});
  const at::Tensor whole = flex_attention(q, k, v, {.block_mask = mask});

  const auto masks = split_block_mask(mask, chunks);
  const auto qs = q.tensor_split(chunks);
  const auto ks = k.tensor_split(chunks);
  const auto vs = v.tensor_split(chunks);
  std::vector<at::Tensor> outs;
  for (std::size_t i = 0; i < masks.size(); ++i) {
    outs.push_back(flex_attention(qs[i], ks[i], vs[i], {.block_mask = masks[i]}));
  }
  const at::Tensor joined = at::cat(outs);
  EXPECT_LT(distance(joined, whole), 1e-12);
  const auto expected = reference::gradients(whole, {q, k, v}, weight);
  const auto got = reference::gradients(joined, {q, k, v}, weight);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_LT(distance(got[i], expected[i]), 1e-12) << i;
}

TEST(SplitBlockMask, ChunksAttendAsTheWholeDoes) {
  expect_same_attention(create_block_mask(document_mask(documents(6, 40)), 6, 1, 40, 40, 16), 6, 40,
                        4);
}

TEST(SplitBlockMask, ASharedMaskAttendsAsTheWholeDoes) {
  expect_same_attention(create_block_mask(causal_mask(), 1, 1, 40, 40, 16), 6, 40, 4);
}

}  // namespace
}  // namespace stagecraft
