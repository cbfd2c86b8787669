// Block masks inside arguments: PyTorch's test_split_block_mask and
// test_split_block_mask_batch_size_one.

#include <array>
#include <vector>

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>

#include "stagecraft/attention/block_mask.h"
#include "stagecraft/attention/create_block_mask.h"
#include "stagecraft/attention/flex_attention.h"
#include "stagecraft/base/error.h"
#include "stagecraft/microbatch/merge.h"
#include "stagecraft/microbatch/split.h"
#include "stagecraft/tree/tree.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

// Member b of the batch sees b more positions than member 0.
MaskFn growing_window() {
  return [](const at::Tensor& b, const at::Tensor&, const at::Tensor& q, const at::Tensor& kv) {
    return q.sub(kv).le(b.mul(4)).logical_and(q.ge(kv));
  };
}

TEST(SplitBlockMask, InsideADictIsCutAlongTheBatchAndSeesTheRightMember) {
  const auto mask = create_block_mask(growing_window(), 6, 1, 32, 32, 8);
  const auto chunks = split_args_kwargs_into_chunks(
      {tree::dict({{"mask", make_opaque(mask)}, {"x", at::arange(6)}})}, {}, 4);
  ASSERT_EQ(chunks.size(), 4u);
  std::vector<at::Tensor> numbers;
  std::vector<at::Tensor> indices;
  int64_t first = 0;
  for (const auto& chunk : chunks) {
    const auto part = find_opaque<BlockMask>(chunk.args[0].toGenericDict().at("mask"));
    ASSERT_TRUE(part);
    const int64_t batch = part->shape()[0];
    EXPECT_EQ(batch, chunk.args[0].toGenericDict().at("x").toTensor().size(0));
    numbers.push_back(part->kv_num_blocks());
    indices.push_back(part->kv_indices());
    EXPECT_TRUE(at::equal(create_mask(part->mask_fn(), batch, 1, 32, 32),
                          create_mask(growing_window(), 6, 1, 32, 32).narrow(0, first, batch)));
    first += batch;
  }
  EXPECT_EQ(first, 6);
  EXPECT_TRUE(at::equal(at::cat(numbers), mask->kv_num_blocks()));
  EXPECT_TRUE(at::equal(at::cat(indices), mask->kv_indices()));
}

struct Outcome {
  at::Tensor out;
  at::Tensor q_grad;
  at::Tensor k_grad;
  at::Tensor v_grad;
};

// Attention on fresh leaves with these values, with backward from ones: for the whole batch, or
// chunk by chunk, with the outputs and the gradients of the chunks put together.
Outcome attend(const at::Tensor& x, const c10::intrusive_ptr<BlockMask>& mask, int64_t chunks) {
  const auto q = x.clone().set_requires_grad(true);
  const auto k = x.mul(0.5).set_requires_grad(true);
  const auto v = x.sub(1).set_requires_grad(true);
  std::vector<c10::IValue> outs;
  std::array<std::vector<at::Tensor>, 3> grads;
  for (const auto& call : split_args_kwargs_into_chunks(
           {tree::dict({{"q", q}, {"k", k}, {"v", v}, {"mask", make_opaque(mask)}})}, {}, chunks)) {
    const auto batch = call.args[0].toGenericDict();
    const auto part = [&](const char* name) { return batch.at(name).toTensor(); };
    const auto out = flex_attention(part("q"), part("k"), part("v"),
                                    {.block_mask = find_opaque<BlockMask>(batch.at("mask"))});
    out.backward(at::ones_like(out));
    outs.emplace_back(out.detach());
    for (std::size_t i = 0; i < 3; ++i) {
      grads[i].push_back(part(i == 0 ? "q" : i == 1 ? "k" : "v").grad());
    }
  }
  // What reached the chunks has reached the whole.
  EXPECT_TRUE(at::equal(at::cat(grads[0]), q.grad()));
  return {merge_chunks(outs).toTensor(), at::cat(grads[0]), at::cat(grads[1]), at::cat(grads[2])};
}

void expect_same(const Outcome& a, const Outcome& b) {
  EXPECT_TRUE(at::allclose(a.out, b.out, 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(a.q_grad, b.q_grad, 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(a.k_grad, b.k_grad, 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(a.v_grad, b.v_grad, 1e-5, 1e-6));
}

TEST(SplitBlockMask, OutputsAndGradientsOfTheChunksAreThoseOfTheBatch) {
  const auto mask = create_block_mask(growing_window(), 6, 1, 32, 32, 8);
  const auto x = at::randn({6, 2, 32, 8});
  expect_same(attend(x, mask, 4), attend(x, mask, 1));
}

TEST(SplitBlockMask, OfBatchOneGivesTheSameOutputsAndGradients) {
  const auto mask = create_block_mask(causal_mask(), 1, 1, 32, 32, 8);
  const auto x = at::randn({6, 2, 32, 8});
  expect_same(attend(x, mask, 4), attend(x, mask, 1));
}

TEST(SplitBlockMask, OfBatchOneIsSharedByAllChunks) {
  const auto mask = create_block_mask(causal_mask(), 1, 1, 16, 16, 8);
  const auto chunks =
      split_args_kwargs_into_chunks({at::arange(8)}, {{"mask", make_opaque(mask)}}, 4);
  ASSERT_EQ(chunks.size(), 4u);
  for (const auto& chunk : chunks) {
    EXPECT_EQ(find_opaque<BlockMask>(chunk.kwargs.get("mask")).get(), mask.get());
  }
}

TEST(SplitBlockMask, LimitsTheNumberOfChunksAsTensorsDo) {
  const auto mask = create_block_mask(growing_window(), 3, 1, 16, 16, 8);
  EXPECT_EQ(split_args_kwargs_into_chunks({at::arange(8), make_opaque(mask)}, {}, 4).size(), 3u);
}

TEST(SplitBlockMask, CanBeReplicated) {
  const auto mask = create_block_mask(growing_window(), 3, 1, 16, 16, 8);
  const auto chunks = split_args_kwargs_into_chunks(
      {at::arange(8), make_opaque(mask)}, {}, 4, {.args_spec = ChunkSpec::tuple({0, Replicate{}})});
  ASSERT_EQ(chunks.size(), 4u);
  EXPECT_EQ(find_opaque<BlockMask>(chunks[3].args[1]).get(), mask.get());
}

TEST(SplitBlockMask, MisuseNamesThePath) {
  const auto mask = make_opaque(create_block_mask(growing_window(), 3, 1, 16, 16, 8));
  EXPECT_ERROR(split_args_kwargs_into_chunks({mask}, {}, 2, {.args_spec = ChunkSpec::tuple({1})}),
               ArgumentError,
               "args[0]: an opaque leaf is split along dimension 0, got TensorChunkSpec(1)");
  EXPECT_ERROR(
      split_args_kwargs_into_chunks({mask}, {}, 2, {.args_spec = ChunkSpec::tuple({NoSpec{}})}),
      ArgumentError, "args[0]: BlockMask[3, 1, 16, 16]");
}

}  // namespace
}  // namespace stagecraft
