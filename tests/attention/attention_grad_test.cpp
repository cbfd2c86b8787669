#include "stagecraft/attention/attention_grad.h"

#include <array>

#include <gtest/gtest.h>

#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/autograd.h>

#include "stagecraft/attention/create_block_mask.h"
#include "stagecraft/attention/flex_attention.h"
#include "tests/attention/reference.h"

namespace stagecraft {
namespace {

using reference::distance;
using reference::gradients;
using reference::leaf;
using reference::random;
using reference::seeded;

constexpr double kGradExact = 1e-11;

struct Case {
  Case(uint64_t seed, at::IntArrayRef q_shape, at::IntArrayRef k_shape) {
    at::Generator generator = seeded(seed);
    q = leaf(random(generator, q_shape));
    k = leaf(random(generator, k_shape));
    v = leaf(random(generator, k_shape));
    weight = random(generator, q_shape);
  }

  std::vector<at::Tensor> inputs() const { return {q, k, v}; }

  at::Tensor q;
  at::Tensor k;
  at::Tensor v;
  at::Tensor weight;
};

void expect_gradients(const Case& x, const at::Tensor& dense, BlockSize block) {
  const auto mask = create_block_mask(reference::lookup(dense), dense.size(0), dense.size(1),
                                      dense.size(2), dense.size(3), block);
  const at::Tensor out =
      flex_attention(x.q, x.k, x.v, {.block_mask = mask, .scale = 0.4, .enable_gqa = true});
  const at::Tensor expected = reference::attention(x.q, x.k, x.v, dense, 0.4);
  const auto got = gradients(out, x.inputs(), x.weight);
  const auto want = gradients(expected, x.inputs(), x.weight);
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_LT(distance(got[i], want[i]), kGradExact) << "input " << i;
}

TEST(AttentionGrad, EqualsThatOfDenseAttention) {
  expect_gradients(Case(1, {2, 3, 20, 4}, {2, 3, 20, 4}), create_mask(causal_mask(), 1, 1, 20, 20),
                   8);
}

TEST(AttentionGrad, RandomMasksAndShapes) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    reference::Picks pick(seed);
    const reference::RandomCase c(seed, pick, 50);
    const int64_t kv_batch = pick(0, 3) == 0 ? 1 : c.batch;
    expect_gradients(
        Case(seed, {c.batch, c.heads, c.q_len, 4}, {kv_batch, c.kv_heads, c.kv_len, 4}), c.dense,
        {pick(1, 30), pick(1, 30)});
  }
}

TEST(AttentionGrad, RowsThatKeepNothingGetNone) {
  const Case x(2, {1, 1, 12, 4}, {1, 1, 12, 4});
  const auto mask = create_block_mask([](const at::Tensor&, const at::Tensor&, const at::Tensor& q,
                                         const at::Tensor& kv) { return q.ge(kv.add(3)); },
                                      1, 1, 12, 12, 4);
  for (const bool scored : {false, true}) {
    const ScoreFn same = [](const at::Tensor& score, const auto&...) { return score; };
    const at::Tensor out =
        flex_attention(x.q, x.k, x.v, {.score_fn = scored ? same : ScoreFn(), .block_mask = mask});
    const auto grads = gradients(out, x.inputs(), x.weight);
    EXPECT_EQ(grads[0].narrow(2, 0, 3).abs().max().item<double>(), 0);
    for (const auto& grad : grads) EXPECT_FALSE(grad.isnan().any().item<bool>());
  }
}

TEST(AttentionGrad, AMaskThatKeepsNothingGivesZeroGradients) {
  const Case x(3, {1, 1, 6, 4}, {1, 1, 6, 4});
  const auto mask = create_block_mask(or_masks({}), 1, 1, 6, 6, 4);
  const ScoreFn same = [](const at::Tensor& score, const auto&...) { return score; };
  for (const ScoreFn& score_fn : {ScoreFn(), same}) {
    const at::Tensor out =
        flex_attention(x.q, x.k, x.v, {.score_fn = score_fn, .block_mask = mask});
    for (const bool create_graph : {false, true}) {
      for (const auto& grad :
           torch::autograd::grad({out}, x.inputs(), {x.weight}, true, create_graph)) {
        EXPECT_EQ(grad.abs().max().item<double>(), 0);
      }
    }
  }
}

TEST(AttentionGrad, OnlyWantedGradientsAreMade) {
  const at::Tensor dense = create_mask(causal_mask(), 1, 1, 20, 20);
  const auto mask = create_block_mask(causal_mask(), 1, 1, 20, 20, 8);
  for (int wanted = 1; wanted < 8; ++wanted) {
    SCOPED_TRACE(testing::Message() << "wanted " << wanted);
    const Case x(4, {2, 2, 20, 4}, {2, 2, 20, 4});
    std::vector<at::Tensor> all;
    std::vector<at::Tensor> asked;
    for (std::size_t i = 0; i < 3; ++i) {
      const bool want = ((wanted >> i) & 1) != 0;
      all.push_back(want ? x.inputs()[i] : x.inputs()[i].detach());
      if (want) asked.push_back(all.back());
    }
    const auto got =
        gradients(flex_attention(all[0], all[1], all[2], {.block_mask = mask, .scale = 0.4}), asked,
                  x.weight);
    const auto want =
        gradients(reference::attention(all[0], all[1], all[2], dense, 0.4), asked, x.weight);
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_LT(distance(got[i], want[i]), kGradExact) << i;
  }
}

TEST(AttentionGrad, OneTensorMayBeAllThree) {
  const Case x(5, {2, 2, 20, 4}, {2, 2, 20, 4});
  const auto mask = create_block_mask(causal_mask(), 1, 1, 20, 20, 8);
  const at::Tensor out = flex_attention(x.q, x.q, x.q, {.block_mask = mask, .scale = 0.4});
  const at::Tensor expected =
      reference::attention(x.q, x.q, x.q, create_mask(causal_mask(), 1, 1, 20, 20), 0.4);
  const auto want = gradients(expected, {x.q}, x.weight);
  for (const bool create_graph : {false, true}) {
    const auto got = torch::autograd::grad({out}, {x.q}, {x.weight}, true, create_graph);
    EXPECT_LT(distance(got[0], want[0]), kGradExact);
  }
}

TEST(AttentionGrad, StridedAndExpandedGradientsAreTaken) {
  const Case x(6, {2, 2, 20, 4}, {2, 2, 20, 4});
  const auto mask = create_block_mask(causal_mask(), 1, 1, 20, 20, 8);
  const at::Tensor out = flex_attention(x.q, x.k, x.v, {.block_mask = mask, .scale = 0.4});
  const at::Tensor expected =
      reference::attention(x.q, x.k, x.v, create_mask(causal_mask(), 1, 1, 20, 20), 0.4);
  for (const at::Tensor& weight : {at::ones({1}, at::kDouble).expand({2, 2, 20, 4}),
                                   x.weight.transpose(1, 2).contiguous().transpose(1, 2)}) {
    const auto got = gradients(out, x.inputs(), weight);
    const auto want = gradients(expected, x.inputs(), weight);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_LT(distance(got[i], want[i]), kGradExact) << i;
  }
}

TEST(AttentionGrad, GradientsCanBeDifferentiated) {
  const Case x(7, {2, 4, 12, 4}, {2, 2, 12, 4});
  const auto mask = create_block_mask(causal_mask(), 1, 1, 12, 12, 8);
  const auto second = [&](const at::Tensor& out) {
    const auto first = torch::autograd::grad({out}, x.inputs(), {x.weight}, true, true);
    const at::Tensor sum =
        first[0].pow(2).sum().add(first[1].pow(3).sum()).add(first[2].pow(2).sum());
    return torch::autograd::grad({sum}, x.inputs());
  };
  const auto got =
      second(flex_attention(x.q, x.k, x.v, {.block_mask = mask, .scale = 0.4, .enable_gqa = true}));
  const auto want =
      second(reference::attention(x.q, x.k, x.v, create_mask(causal_mask(), 1, 1, 12, 12), 0.4));
  for (std::size_t i = 0; i < 3; ++i) EXPECT_LT(distance(got[i], want[i]), kGradExact) << i;
}

TEST(AttentionGrad, WhatTheScoreFunctionCapturedGetsItsGradient) {
  const Case x(8, {2, 3, 20, 4}, {2, 3, 20, 4});
  at::Generator generator = seeded(9);
  const at::Tensor bias = leaf(random(generator, {3, 20, 20}));
  const ScoreFn add_bias = [&](const at::Tensor& score, const at::Tensor&, const at::Tensor& h,
                               const at::Tensor& q, const at::Tensor& kv) {
    return score.add(bias.index({h, q, kv}));
  };
  const auto mask = create_block_mask(causal_mask(), 1, 1, 20, 20, 8);
  const at::Tensor out =
      flex_attention(x.q, x.k, x.v, {.score_fn = add_bias, .block_mask = mask, .scale = 0.4});
  const at::Tensor expected =
      reference::attention(x.q, x.k, x.v, create_mask(causal_mask(), 1, 1, 20, 20), 0.4, bias);
  const std::vector<at::Tensor> inputs = {x.q, x.k, x.v, bias};
  const auto got = gradients(out, inputs, x.weight);
  const auto want = gradients(expected, inputs, x.weight);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_LT(distance(got[i], want[i]), kGradExact) << i;
  // The inputs need not want any.
  const at::Tensor frozen =
      flex_attention(x.q.detach(), x.k.detach(), x.v.detach(),
                     {.score_fn = add_bias, .block_mask = mask, .scale = 0.4});
  EXPECT_LT(distance(gradients(frozen, {bias}, x.weight)[0], want[3]), kGradExact);
}

TEST(AttentionGrad, HalfTypesGetGradientsOfTheirType) {
  const Case x(10, {1, 2, 32, 8}, {1, 2, 32, 8});
  const auto mask = create_block_mask(causal_mask(), 1, 1, 32, 32, 16);
  const at::Tensor q = leaf(x.q.to(at::kBFloat16));
  const at::Tensor k = leaf(x.k.to(at::kBFloat16));
  const at::Tensor v = leaf(x.v.to(at::kBFloat16));
  const at::Tensor weight = x.weight.to(at::kBFloat16);
  const auto got =
      gradients(flex_attention(q, k, v, {.block_mask = mask, .scale = 0.4}), {q, k, v}, weight);
  const at::Tensor wide_q = leaf(q.to(at::kDouble));
  const at::Tensor wide_k = leaf(k.to(at::kDouble));
  const at::Tensor wide_v = leaf(v.to(at::kDouble));
  const auto want = gradients(
      reference::attention(wide_q, wide_k, wide_v, create_mask(causal_mask(), 1, 1, 32, 32), 0.4),
      {wide_q, wide_k, wide_v}, weight.to(at::kDouble));
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(got[i].scalar_type(), at::kBFloat16);
    EXPECT_LT(distance(got[i], want[i]), 2e-2) << i;
  }
}

TEST(AttentionGrad, NothingButTheInputsIsKept) {
  const Case x(11, {1, 1, 64, 4}, {1, 1, 64, 4});
  int64_t asked = 0;
  const MaskFn counting = [&](const at::Tensor& b, const at::Tensor& h, const at::Tensor& q,
                              const at::Tensor& kv) {
    asked += b.numel() * h.numel() * q.numel() * kv.numel();
    return q.ge(kv);
  };
  const auto mask = create_block_mask(counting, 1, 1, 64, 64, 8);
  const at::Tensor out = flex_attention(x.q, x.k, x.v, {.block_mask = mask});
  asked = 0;
  gradients(out, x.inputs(), x.weight);
  EXPECT_EQ(asked, 8 * 8 * 8);  // the partial blocks again, and only those
}

}  // namespace
}  // namespace stagecraft
