#include "stagecraft/attention/half_attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>

#include "stagecraft/attention/block_mask_split.h"
#include "stagecraft/attention/create_block_mask.h"
#include "tests/attention/packed_kernel.h"
#include "tests/attention/reference.h"

namespace stagecraft::detail {
namespace {

using reference::distance;
using reference::gradients;
using reference::leaf;
using reference::packed_call;
using reference::random;
using reference::seeded;

constexpr double kHalfExact = 1e-11;

/// An attention, with leaves for inputs.
struct Problem {
  Problem(uint64_t seed, at::IntArrayRef q_shape, at::IntArrayRef k_shape,
          c10::intrusive_ptr<BlockMask> block_mask, at::ScalarType type = at::kDouble,
          int64_t value_size = 0) {
    at::Generator generator = seeded(seed);
    auto v_shape = k_shape.vec();
    auto out_shape = q_shape.vec();
    if (value_size > 0) v_shape[3] = out_shape[3] = value_size;
    q = leaf(random(generator, q_shape, type));
    k = leaf(random(generator, k_shape, type));
    v = leaf(random(generator, v_shape, type));
    weight = random(generator, out_shape, type);
    sizes->batch = q_shape[0];
    sizes->kv_heads = k_shape[1];
    sizes->group = q_shape[1] / k_shape[1];
    sizes->q_len = q_shape[2];
    sizes->kv_len = k_shape[2];
    sizes->scale = 0.3;
    sizes->mask = std::move(block_mask);
  }

  at::Tensor attend() const { return half_attention(sizes, q, k, v); }
  HalfWay way() const { return find_half_plan(*sizes, q, v)->way; }

  /// Expects output and gradients within `tolerance` of dense attention in float64.
  void expect_equals_dense(const at::Tensor& keep, double tolerance) const {
    const at::Tensor out = attend();
    const auto grads = gradients(out, {q, k, v}, weight);
    const auto wide = [](const at::Tensor& x) { return leaf(x.detach().to(at::kDouble)); };
    const at::Tensor wide_q = wide(q);
    const at::Tensor wide_k = wide(k);
    const at::Tensor wide_v = wide(v);
    const at::Tensor expected = reference::attention(wide_q, wide_k, wide_v, keep, sizes->scale);
    const auto expected_grads =
        gradients(expected, {wide_q, wide_k, wide_v}, weight.to(at::kDouble));
    EXPECT_EQ(out.scalar_type(), q.scalar_type());
    EXPECT_LT(distance(out, expected), tolerance);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(grads[i].scalar_type(), q.scalar_type());
      EXPECT_LT(distance(grads[i], expected_grads[i]), tolerance) << "input " << i;
    }
  }

  c10::intrusive_ptr<AttentionProblem> sizes = c10::make_intrusive<AttentionProblem>();
  at::Tensor q;
  at::Tensor k;
  at::Tensor v;
  at::Tensor weight;
};

MaskFn prefix_mask(int64_t length) {
  return [length](const at::Tensor&, const at::Tensor&, const at::Tensor& q, const at::Tensor& kv) {
    return kv.lt(length).logical_or(kv.le(q));
  };
}

MaskFn documents_of(int64_t length, int64_t each) {
  return document_mask(at::arange(length).floor_divide(each));
}

TEST(HalfAttention, ChoosesByTheScoresThatAreKept) {
  const auto way = [](const MaskFn& mask_fn, int64_t q_len, int64_t kv_len, int64_t heads = 1) {
    const auto mask = create_block_mask(mask_fn, 1, heads, q_len, kv_len, 16);
    return Problem(1, {2, 2, q_len, 8}, {2, 2, kv_len, 8}, mask).way();
  };
  EXPECT_EQ(Problem(1, {1, 1, 9, 8}, {1, 1, 9, 8}, {}).way(), HalfWay::kDense);
  EXPECT_EQ(way(no_mask(), 40, 40), HalfWay::kDense);
  EXPECT_EQ(way(causal_mask(), 40, 40), HalfWay::kCausal);
  EXPECT_EQ(way(prefix_mask(1), 40, 40), HalfWay::kCausal);
  EXPECT_EQ(way(causal_mask(), 30, 40), HalfWay::kPacked);
  EXPECT_EQ(way(documents_of(40, 13), 40, 40), HalfWay::kPacked);
  EXPECT_EQ(way(and_masks({causal_mask(), documents_of(40, 13)}), 40, 40), HalfWay::kPacked);
  EXPECT_EQ(way(sliding_window_mask(5), 40, 40), HalfWay::kPacked);
  EXPECT_EQ(way(prefix_mask(4), 40, 40), HalfWay::kMasked);
  const MaskFn by_head = [](const at::Tensor&, const at::Tensor& h, const at::Tensor& q,
                            const at::Tensor& kv) { return kv.le(q.add(h)); };
  EXPECT_EQ(way(by_head, 40, 40, 2), HalfWay::kMasked);
  // Queries that keep nothing: not by torch's fused attention.
  EXPECT_EQ(
      way(document_mask(at::arange(40).floor_divide(20), at::arange(40).floor_divide(20).add(1)),
          40, 40),
      HalfWay::kFloat);
  // No fused kernel has heads of this size.
  const auto mask = create_block_mask(documents_of(40, 13), 1, 1, 40, 40, 16);
  EXPECT_EQ(Problem(1, {1, 1, 40, 264}, {1, 1, 40, 264}, mask).way(), HalfWay::kMasked);
}

TEST(HalfAttention, IsForHalfTypesOnAGpuOnly) {
  for (const auto type : {at::kHalf, at::kBFloat16, at::kFloat}) {
    EXPECT_FALSE(takes_half_attention(at::arange(3).to(type)));
  }
}

TEST(HalfAttention, WholeMasksEqualDenseAttention) {
  for (const bool causal : {false, true}) {
    const MaskFn mask_fn = causal ? causal_mask() : no_mask();
    const auto mask = create_block_mask(mask_fn, 1, 1, 21, 21, 8);
    const Problem x(2, {2, 4, 21, 8}, {2, 2, 21, 8}, mask);
    EXPECT_EQ(x.way(), causal ? HalfWay::kCausal : HalfWay::kDense);
    x.expect_equals_dense(create_mask(mask_fn, 1, 1, 21, 21), kHalfExact);
    // Key and value of one member serve all.
    Problem(3, {3, 2, 21, 8}, {1, 2, 21, 8}, mask)
        .expect_equals_dense(create_mask(mask_fn, 1, 1, 21, 21), kHalfExact);
  }
}

TEST(HalfAttention, PackedMasksEqualDenseAttention) {
  const auto check = [](const MaskFn& mask_fn, int64_t batch, int64_t q_len, int64_t kv_len) {
    const auto mask = create_block_mask(mask_fn, batch, 1, q_len, kv_len, 8);
    const at::Tensor keep = create_mask(mask_fn, batch, 1, q_len, kv_len);
    Problem x(4, {2, 4, q_len, 8}, {2, 2, kv_len, 8}, mask);
    EXPECT_EQ(x.way(), HalfWay::kPacked);
    x.expect_equals_dense(keep, kHalfExact);
    // Positions before heads in memory, as a projection leaves them.
    x.q = leaf(x.q.transpose(1, 2).contiguous()).transpose(1, 2);
    x.k = leaf(x.k.transpose(1, 2).contiguous()).transpose(1, 2);
    x.expect_equals_dense(keep, kHalfExact);
    Problem(5, {2, 2, q_len, 8}, {1, 2, kv_len, 8}, mask).expect_equals_dense(keep, kHalfExact);
    // Sizes that a kernel does not have are filled up with zeros.
    Problem(6, {2, 2, q_len, 5}, {2, 2, kv_len, 5}, mask, at::kDouble, 11)
        .expect_equals_dense(keep, kHalfExact);
  };
  check(documents_of(30, 7), 1, 30, 30);
  check(and_masks({causal_mask(), documents_of(30, 7)}), 1, 30, 30);
  check(sliding_window_mask(4), 1, 30, 30);
  check(and_masks({sliding_window_mask(4), documents_of(30, 7)}), 1, 30, 30);
  check(causal_mask(), 1, 13, 30);
  check(document_mask(at::arange(60).view({2, 30}).mul(3).remainder(61).floor_divide(20).cumsum(1)),
        2, 30, 30);
  // Some keys are kept by no query.
  check(document_mask(at::arange(21).floor_divide(7), at::arange(40).floor_divide(10)), 1, 21, 40);
}

TEST(HalfAttention, OneCallServesAllSegments) {
  const auto mask =
      create_block_mask(and_masks({sliding_window_mask(4), documents_of(30, 7)}), 1, 1, 30, 30, 8);
  Problem x(7, {2, 4, 30, 6}, {2, 2, 30, 6}, mask);
  x.way();
  const int64_t before = packed_call().calls;
  const int64_t before_backward = packed_call().backward_calls;
  gradients(x.attend(), {x.q, x.k, x.v}, x.weight);
  EXPECT_EQ(packed_call().calls - before, 1);
  EXPECT_EQ(packed_call().backward_calls - before_backward, 1);
  EXPECT_EQ(packed_call().segments, 5);
  EXPECT_EQ(packed_call().heads, 8);  // two members of four heads
  EXPECT_EQ(packed_call().size, 8);
  EXPECT_FALSE(packed_call().causal);  // the window says it
  EXPECT_EQ(packed_call().left, 4);
  EXPECT_EQ(packed_call().right, 0);
  // Positions before heads: members follow one another.
  x.q = leaf(x.q.transpose(1, 2).contiguous()).transpose(1, 2);
  x.attend();
  EXPECT_EQ(packed_call().segments, 10);
  EXPECT_EQ(packed_call().heads, 4);
}

TEST(HalfAttention, APackedCallIsOneNode) {
  const auto mask = create_block_mask(documents_of(30, 7), 1, 1, 30, 30, 8);
  // Sizes that need no copy, and sizes that are filled up.
  for (const int64_t size : {8, 5}) {
    const Problem x(20, {2, 4, 30, size}, {2, 2, 30, size}, mask);
    const at::Tensor out = x.attend();
    ASSERT_EQ(out.grad_fn()->num_outputs(), 3U);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(out.grad_fn()->next_edge(i).function->name(), "torch::autograd::AccumulateGrad");
    }
    // Without gradients there is none.
    const at::NoGradGuard no_grad;
    EXPECT_EQ(x.attend().grad_fn(), nullptr);
  }
}

TEST(HalfAttention, APackedCallNoticesChangesOfWhatItsGradientReads) {
  const auto mask = create_block_mask(documents_of(30, 7), 1, 1, 30, 30, 8);
  const Problem x(21, {2, 4, 30, 8}, {2, 2, 30, 8}, mask);
  const at::Tensor out = x.attend();
  out.mul_(2);
  EXPECT_THROW(gradients(out, {x.q, x.k, x.v}, x.weight), c10::Error);
  const at::Tensor k = x.k.detach().clone().requires_grad_();
  const at::Tensor changed = k.mul(1);
  const at::Tensor again = half_attention(x.sizes, x.q, changed, x.v);
  changed.mul_(2);
  EXPECT_THROW(gradients(again, {x.q, x.v}, x.weight), c10::Error);
}

TEST(HalfAttention, TheSecondDerivativeOfAPackedCallIsRefusedByName) {
  const auto mask = create_block_mask(documents_of(30, 7), 1, 1, 30, 30, 8);
  const Problem x(22, {2, 4, 30, 8}, {2, 2, 30, 8}, mask);
  const auto first = torch::autograd::grad({x.attend().sum()}, {x.q}, {}, true,
                                           /*create_graph=*/true);
  try {
    torch::autograd::grad({first[0].sum()}, {x.q});
    ADD_FAILURE() << "no error";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("_flash_attention_backward"), std::string::npos)
        << error.what();
  }
}

TEST(HalfAttention, EveryMaskEqualsDenseAttention) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    reference::Picks pick(seed);
    const reference::RandomCase each(seed, pick, 200);
    const auto mask =
        create_block_mask(reference::lookup(each.dense), each.dense.size(0), each.dense.size(1),
                          each.q_len, each.kv_len, pick(0, 1) == 0 ? 16 : 128);
    const int64_t kv_batch = pick(0, 3) == 0 ? 1 : each.batch;
    const Problem x(seed, {each.batch, each.heads, each.q_len, 8},
                    {kv_batch, each.kv_heads, each.kv_len, 8}, mask, at::kDouble, pick(1, 9));
    x.expect_equals_dense(each.dense, 1e-10);
  }
}

TEST(HalfAttention, QueriesThatKeepNothingGiveZeroAndGetNoGradient) {
  const MaskFn scattered = [](const at::Tensor&, const at::Tensor&, const at::Tensor& q,
                              const at::Tensor& kv) {
    return q.remainder(3).ne(0).logical_and(kv.add(q).remainder(5).eq(0));
  };
  const auto mask = create_block_mask(scattered, 1, 1, 70, 80, 16);
  const Problem x(8, {1, 2, 70, 8}, {1, 2, 80, 8}, mask);
  EXPECT_EQ(x.way(), HalfWay::kFloat);
  const at::Tensor out = x.attend();
  const auto grads = gradients(out, {x.q, x.k, x.v}, x.weight);
  EXPECT_EQ(out.select(2, 3).abs().max().item<double>(), 0);
  EXPECT_EQ(grads[0].select(2, 3).abs().max().item<double>(), 0);
  EXPECT_GT(grads[0].select(2, 4).abs().max().item<double>(), 0);
}

TEST(HalfAttention, HalfTypesStayClose) {
  const auto dense = [](const MaskFn& mask_fn) { return create_mask(mask_fn, 1, 1, 150, 150); };
  const std::vector<MaskFn> masks = {causal_mask(), documents_of(150, 40), prefix_mask(40)};
  for (const auto& mask_fn : masks) {
    const auto mask = create_block_mask(mask_fn, 1, 1, 150, 150, 64);
    Problem(9, {1, 4, 150, 16}, {1, 2, 150, 16}, mask, at::kBFloat16)
        .expect_equals_dense(dense(mask_fn), 0.1);
    Problem(9, {1, 4, 150, 16}, {1, 2, 150, 16}, mask, at::kHalf)
        .expect_equals_dense(dense(mask_fn), 1.2e-2);
  }
}

TEST(HalfAttention, OnlyWantedGradientsAreMade) {
  const auto mask = create_block_mask(prefix_mask(4), 1, 1, 20, 20, 8);
  const auto packed = create_block_mask(documents_of(20, 3), 1, 1, 20, 20, 8);
  for (std::size_t i = 0; i < 6; ++i) {
    const std::size_t wanted = i % 3;
    const Problem x(12, {1, 2, 20, 4}, {1, 2, 20, 4}, i < 3 ? mask : packed);
    const auto all = gradients(x.attend(), {x.q, x.k, x.v}, x.weight);
    std::vector<at::Tensor> inputs = {x.q.detach(), x.k.detach(), x.v.detach()};
    inputs[wanted] = leaf(inputs[wanted]);
    const at::Tensor out = half_attention(x.sizes, inputs[0], inputs[1], inputs[2]);
    EXPECT_LT(distance(gradients(out, {inputs[wanted]}, x.weight)[0], all[wanted]), kHalfExact);
  }
}

TEST(HalfAttention, AsksTheMaskFunctionOnce) {
  const auto calls = std::make_shared<std::atomic<int>>(0);
  const auto counted = [calls](const MaskFn& mask_fn) -> MaskFn {
    return [calls, mask_fn](const at::Tensor& b, const at::Tensor& h, const at::Tensor& q,
                            const at::Tensor& kv) {
      ++*calls;
      return mask_fn(b, h, q, kv);
    };
  };
  for (const MaskFn& mask_fn : {prefix_mask(4), documents_of(20, 3), causal_mask()}) {
    const auto mask = create_block_mask(counted(mask_fn), 1, 1, 20, 20, 8);
    const Problem x(13, {1, 2, 20, 4}, {1, 2, 20, 4}, mask);
    gradients(x.attend(), {x.q, x.k, x.v}, x.weight);
    const int before = *calls;
    gradients(x.attend(), {x.q, x.k, x.v}, x.weight);
    EXPECT_EQ(*calls, before);
  }
}

TEST(HalfAttention, ChunksOfAMaskKeepTheirPlans) {
  // A step that is captured as a graph splits the mask again, and must not ask the device.
  const auto mask = create_block_mask(documents_of(20, 3), 4, 1, 20, 20, 8);
  const auto first = split_block_mask(mask, 2);
  const auto second = split_block_mask(mask, 2);
  EXPECT_EQ(first[1].get(), second[1].get());
  EXPECT_NE(split_block_mask(mask, 4)[0].get(), first[0].get());
}

TEST(HalfAttention, FusedAttentionGetsGradientsInTheLayoutOfItsResult) {
  at::Generator generator = seeded(15);
  const at::Tensor x = leaf(random(generator, {2, 5, 3, 4})).transpose(1, 2).mul(1);
  ASSERT_FALSE(x.is_contiguous());
  at::Tensor seen;
  x.register_hook([&seen](const at::Tensor& grad) { seen = grad; });
  const at::Tensor weight = random(generator, x.sizes());
  ASSERT_TRUE(weight.is_contiguous());
  with_grad_layout(x).backward(weight);
  EXPECT_EQ(seen.strides(), x.strides());
  EXPECT_TRUE(at::equal(seen, weight));
}

TEST(HalfAttention, AutocastChangesNothing) {
  const auto mask = create_block_mask(prefix_mask(4), 1, 1, 20, 20, 8);
  const Problem x(14, {1, 2, 20, 4}, {1, 2, 20, 4}, mask, at::kFloat);
  const at::Tensor expected = x.attend();
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor out = x.attend();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_TRUE(at::equal(out, expected));
}

}  // namespace
}  // namespace stagecraft::detail
