#include "stagecraft/attention/flex_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_nested_tensor_from_tensor_list.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include "stagecraft/attention/create_block_mask.h"
#include "stagecraft/base/error.h"
#include "tests/attention/reference.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

using reference::distance;
using reference::random;
using reference::seeded;

constexpr double kOutputExact = 1e-12;

struct Inputs {
  Inputs(uint64_t seed, at::IntArrayRef q_shape, at::IntArrayRef k_shape,
         at::ScalarType type = at::kDouble) {
    at::Generator generator = seeded(seed);
    q = random(generator, q_shape, type);
    k = random(generator, k_shape, type);
    v = random(generator, k_shape, type);
    scale = 1 / std::sqrt(static_cast<double>(q_shape.back()));
  }

  at::Tensor expected(const at::Tensor& keep) const {
    return reference::attention(q.to(at::kDouble), k.to(at::kDouble), v.to(at::kDouble), keep,
                                scale);
  }

  at::Tensor q;
  at::Tensor k;
  at::Tensor v;
  double scale = 1;
};

TEST(FlexAttention, WithoutAMaskEveryKeyIsKept) {
  const Inputs x(1, {2, 3, 17, 8}, {2, 3, 29, 8});
  EXPECT_LT(distance(flex_attention(x.q, x.k, x.v), x.expected(at::ones({1}, at::kBool))),
            kOutputExact);
}

TEST(FlexAttention, AppliesTheMaskInPartialBlocks) {
  const Inputs x(2, {2, 3, 20, 8}, {2, 3, 20, 8});
  const auto mask = create_block_mask(causal_mask(), 1, 1, 20, 20, 8);
  EXPECT_LT(distance(flex_attention(x.q, x.k, x.v, {.block_mask = mask}),
                     x.expected(create_mask(causal_mask(), 1, 1, 20, 20))),
            kOutputExact);
}

TEST(FlexAttention, TakesAScale) {
  Inputs x(3, {1, 1, 9, 4}, {1, 1, 9, 4});
  x.scale = 0.3;
  EXPECT_LT(
      distance(flex_attention(x.q, x.k, x.v, {.scale = 0.3}), x.expected(at::ones({1}, at::kBool))),
      kOutputExact);
}

TEST(FlexAttention, ValuesMayHaveAnotherSize) {
  Inputs x(4, {2, 2, 9, 4}, {2, 2, 9, 4});
  x.v = x.v.narrow(3, 0, 3);
  const at::Tensor out = flex_attention(x.q, x.k, x.v);
  EXPECT_EQ(out.sizes(), (std::vector<int64_t>{2, 2, 9, 3}));
  EXPECT_LT(distance(out, x.expected(at::ones({1}, at::kBool))), kOutputExact);
}

TEST(FlexAttention, HeadsOfKeysServeAGroup) {
  const Inputs x(5, {2, 6, 20, 8}, {2, 2, 20, 8});
  const auto mask = create_block_mask(causal_mask(), 1, 1, 20, 20, 8);
  const at::Tensor keep = create_mask(causal_mask(), 1, 1, 20, 20);
  EXPECT_LT(distance(flex_attention(x.q, x.k, x.v, {.block_mask = mask, .enable_gqa = true}),
                     x.expected(keep)),
            kOutputExact);
}

TEST(FlexAttention, KeysOfOneMemberServeTheBatch) {
  const Inputs x(6, {3, 2, 20, 8}, {1, 2, 20, 8});
  const at::Tensor dense = reference::dense_mask(
      [](auto b, auto, auto q, auto kv) { return kv <= q + b; }, 3, 1, 20, 20);
  const auto mask = create_block_mask(reference::lookup(dense), 3, 1, 20, 20, 8);
  EXPECT_LT(distance(flex_attention(x.q, x.k, x.v, {.block_mask = mask}), x.expected(dense)),
            kOutputExact);
  EXPECT_LT(distance(flex_attention(x.q, x.k, x.v), x.expected(at::ones({1}, at::kBool))),
            kOutputExact);
}

TEST(FlexAttention, RowsThatKeepNothingAreZero) {
  const Inputs x(7, {2, 1, 20, 8}, {2, 1, 20, 8});
  const at::Tensor dense = reference::dense_mask(
      [](auto b, auto, auto q, auto kv) { return kv + 5 <= q && q != 13 + b; }, 2, 1, 20, 20);
  const auto mask = create_block_mask(reference::lookup(dense), 2, 1, 20, 20, 8);
  const at::Tensor out = flex_attention(x.q, x.k, x.v, {.block_mask = mask});
  EXPECT_LT(distance(out, x.expected(dense)), kOutputExact);
  EXPECT_EQ(out.narrow(2, 0, 5).abs().max().item<double>(), 0);
  EXPECT_EQ(out[0][0][13].abs().max().item<double>(), 0);
  EXPECT_EQ(out[1][0][14].abs().max().item<double>(), 0);
}

TEST(FlexAttention, AMaskThatKeepsNothingGivesZeros) {
  const Inputs x(8, {1, 2, 6, 4}, {1, 2, 6, 4});
  const auto mask = create_block_mask(or_masks({}), 1, 1, 6, 6, 4);
  const at::Tensor zeros = at::zeros({1, 2, 6, 4}, at::kDouble);
  EXPECT_TRUE(at::equal(flex_attention(x.q, x.k, x.v, {.block_mask = mask}), zeros));
  const ScoreFn same = [](const at::Tensor& score, const auto&...) { return score; };
  EXPECT_TRUE(
      at::equal(flex_attention(x.q, x.k, x.v, {.score_fn = same, .block_mask = mask}), zeros));
}

TEST(FlexAttention, EmptyInputsGiveEmptyOrZeroResults) {
  const Inputs x(9, {2, 2, 6, 4}, {2, 2, 5, 4});
  const ScoreFn same = [](const at::Tensor& score, const auto&...) { return score; };
  for (const ScoreFn& score_fn : {ScoreFn(), same}) {
    const FlexAttentionOptions options{.score_fn = score_fn};
    const auto run = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
      return flex_attention(q, k, v, options);
    };
    EXPECT_EQ(run(x.q.narrow(2, 0, 0), x.k, x.v).sizes(), (std::vector<int64_t>{2, 2, 0, 4}));
    EXPECT_EQ(run(x.q.narrow(0, 0, 0), x.k.narrow(0, 0, 0), x.v.narrow(0, 0, 0)).sizes(),
              (std::vector<int64_t>{0, 2, 6, 4}));
    EXPECT_EQ(run(x.q.narrow(1, 0, 0), x.k.narrow(1, 0, 0), x.v.narrow(1, 0, 0)).sizes(),
              (std::vector<int64_t>{2, 0, 6, 4}));
    EXPECT_TRUE(at::equal(run(x.q, x.k.narrow(2, 0, 0), x.v.narrow(2, 0, 0)),
                          at::zeros({2, 2, 6, 4}, at::kDouble)));
    EXPECT_EQ(run(x.q, x.k, x.v.narrow(3, 0, 0)).sizes(), (std::vector<int64_t>{2, 2, 6, 0}));
  }
  const auto mask = create_block_mask(causal_mask(), 1, 1, 0, 5, 4);
  EXPECT_EQ(flex_attention(x.q.narrow(2, 0, 0), x.k, x.v, {.block_mask = mask}).numel(), 0);
}

TEST(FlexAttention, EmptyInputsCanBeDifferentiatedTwice) {
  const auto check = [](at::IntArrayRef q_shape, at::IntArrayRef k_shape,
                        const FlexAttentionOptions& options) {
    const Inputs x(24, q_shape, k_shape);
    const std::vector<at::Tensor> inputs = {reference::leaf(x.q), reference::leaf(x.k),
                                            reference::leaf(x.v)};
    const at::Tensor out = flex_attention(inputs[0], inputs[1], inputs[2], options);
    const auto first = torch::autograd::grad({out}, inputs, {at::ones_like(out)},
                                             /*retain_graph=*/true, /*create_graph=*/true);
    at::Tensor sum = at::zeros({}, at::kDouble);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(at::equal(first[i], at::zeros_like(inputs[i]))) << "input " << i;
      sum = sum.add(first[i].pow(2).sum());
    }
    const auto second = torch::autograd::grad({sum}, inputs);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(at::equal(second[i], at::zeros_like(inputs[i]))) << "input " << i;
    }
  };
  const ScoreFn same = [](const at::Tensor& score, const auto&...) { return score; };
  for (const ScoreFn& score_fn : {ScoreFn(), same}) {
    const FlexAttentionOptions options{.score_fn = score_fn};
    check({2, 2, 0, 4}, {2, 2, 5, 4}, options);
    check({0, 2, 6, 4}, {0, 2, 5, 4}, options);
    check({2, 0, 6, 4}, {2, 0, 5, 4}, options);
    check({2, 2, 6, 4}, {2, 2, 0, 4}, options);
    check({2, 2, 0, 4}, {2, 2, 5, 4},
          {.score_fn = score_fn, .block_mask = create_block_mask(causal_mask(), 1, 1, 0, 5, 4)});
    check({2, 2, 6, 4}, {2, 2, 5, 4},
          {.score_fn = score_fn, .block_mask = create_block_mask(or_masks({}), 1, 1, 6, 5, 4)});
  }
}

/// Autocast of the CPU to bfloat16 for as long as it lives.
class Autocast {
 public:
  Autocast()
      : enabled_(at::autocast::is_autocast_enabled(at::kCPU)),
        dtype_(at::autocast::get_autocast_dtype(at::kCPU)) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
  ~Autocast() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, enabled_);
    at::autocast::set_autocast_dtype(at::kCPU, dtype_);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  bool enabled_;
  at::ScalarType dtype_;
};

TEST(FlexAttention, AutocastChangesNothing) {
  const Inputs x(26, {2, 4, 150, 8}, {2, 2, 150, 8}, at::kFloat);
  const at::Tensor w = at::ones({8, 1});
  // Multiplies matrices itself, which autocast would round.
  const MaskFn by_product = [&](const at::Tensor&, const at::Tensor&, const at::Tensor& q,
                                const at::Tensor& kv) {
    const at::Tensor rows = x.q[0][0].index_select(0, q.flatten()).matmul(w);
    return rows.view({1, 1, -1, 1}).ge(kv.mul(0.01)).logical_or(q.eq(kv));
  };
  const ScoreFn by_matrix = [](const at::Tensor& score, const auto&...) {
    return score.add(score.matmul(score.transpose(2, 3)).tanh().mean(-1, true));
  };
  const auto run = [&](const ScoreFn& score_fn, bool twice) {
    const auto mask = create_block_mask(by_product, 1, 1, 150, 150, 16);
    const std::vector<at::Tensor> inputs = {reference::leaf(x.q), reference::leaf(x.k),
                                            reference::leaf(x.v)};
    const at::Tensor out =
        flex_attention(inputs[0], inputs[1], inputs[2],
                       {.score_fn = score_fn, .block_mask = mask, .enable_gqa = true});
    auto all = torch::autograd::grad({out}, inputs, {x.q}, /*retain_graph=*/true, twice);
    if (twice) {
      const at::Tensor sum = all[0].pow(2).sum().add(all[1].pow(2).sum()).add(all[2].sum());
      for (const at::Tensor& grad : torch::autograd::grad({sum}, inputs)) all.push_back(grad);
    }
    all.push_back(out);
    return all;
  };
  const ScoreFn halve = [](const at::Tensor& score, const auto&...) { return score.mul(0.5); };
  const auto check = [&](const ScoreFn& score_fn, bool twice) {
    const auto expected = run(score_fn, twice);
    const Autocast autocast;
    const auto got = run(score_fn, twice);
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], expected[i])) << i;
  };
  for (const bool twice : {false, true}) {
    check({}, twice);
    check(halve, twice);
  }
  const auto out_with = [&] {
    return flex_attention(x.q, x.k, x.v, {.score_fn = by_matrix, .enable_gqa = true});
  };
  const at::Tensor expected = out_with();
  const at::Tensor expected_mask = create_mask(by_product, 1, 1, 150, 1000);
  const Autocast autocast;
  EXPECT_TRUE(at::equal(out_with(), expected));
  EXPECT_TRUE(at::equal(create_mask(by_product, 1, 1, 150, 1000), expected_mask));
}

TEST(FlexAttention, StridedInputsGiveTheSame) {
  const Inputs x(10, {2, 3, 20, 8}, {2, 3, 20, 8});
  const auto mask = create_block_mask(causal_mask(), 1, 1, 20, 20, 8);
  const auto strided = [](const at::Tensor& t) {
    return t.permute({3, 0, 2, 1}).contiguous().permute({1, 3, 2, 0});
  };
  ASSERT_FALSE(strided(x.q).is_contiguous());
  EXPECT_LT(distance(flex_attention(strided(x.q), strided(x.k), strided(x.v), {.block_mask = mask}),
                     flex_attention(x.q, x.k, x.v, {.block_mask = mask})),
            kOutputExact);
}

TEST(FlexAttention, MaskFunctionIsAskedWithTheIndicesOfTheQuery) {
  // The mask is one for all in its blocks, its function differs by member and head.
  const Inputs x(11, {2, 3, 8, 4}, {2, 3, 8, 4});
  const at::Tensor dense = reference::dense_mask(
      [](auto b, auto h, auto q, auto kv) { return (b + 2 * h + q + kv) % 3 != 0; }, 2, 3, 8, 8);
  const auto shape = create_block_mask(causal_mask(), 1, 1, 8, 8, 8);
  const auto mask = BlockMask::from_kv_blocks(shape->kv_num_blocks(), shape->kv_indices(), {}, {},
                                              8, reference::lookup(dense));
  EXPECT_LT(distance(flex_attention(x.q, x.k, x.v, {.block_mask = mask}), x.expected(dense)),
            kOutputExact);
}

TEST(FlexAttention, BlocksDecideEvenWhereTheFunctionKeepsMore) {
  const Inputs x(12, {1, 1, 8, 4}, {1, 1, 8, 4});
  const auto causal = create_block_mask(causal_mask(), 1, 1, 8, 8, 4);
  const auto mask =
      BlockMask::from_kv_blocks(causal->kv_num_blocks(), causal->kv_indices(), {}, {}, 4);
  const at::Tensor keep = reference::dense_mask(
      [](auto, auto, auto q, auto kv) { return q / 4 == kv / 4; }, 1, 1, 8, 8);
  EXPECT_LT(distance(flex_attention(x.q, x.k, x.v, {.block_mask = mask}), x.expected(keep)),
            kOutputExact);
}

TEST(FlexAttention, RandomMasksAndShapesEqualDenseAttention) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    reference::Picks pick(seed);
    const reference::RandomCase c(seed, pick, 70);
    const auto mask =
        create_block_mask(reference::lookup(c.dense), c.dense.size(0), c.dense.size(1), c.q_len,
                          c.kv_len, {pick(1, 40), pick(1, 40)});
    const Inputs x(seed, {c.batch, c.heads, c.q_len, 8}, {c.batch, c.kv_heads, c.kv_len, 8});
    at::Generator generator = seeded(seed + 1000);
    const at::Tensor bias = random(generator, {1, c.heads, 1, c.kv_len});
    const ScoreFn add_bias = [&](const at::Tensor& score, const at::Tensor&, const at::Tensor& h,
                                 const at::Tensor&, const at::Tensor& kv) {
      return score.add(bias[0].select(1, 0).index({h, kv}));
    };
    EXPECT_LT(distance(flex_attention(x.q, x.k, x.v, {.block_mask = mask, .enable_gqa = true}),
                       x.expected(c.dense)),
              kOutputExact);
    EXPECT_LT(
        distance(flex_attention(x.q, x.k, x.v,
                                {.score_fn = add_bias, .block_mask = mask, .enable_gqa = true}),
                 reference::attention(x.q, x.k, x.v, c.dense, x.scale, bias)),
        kOutputExact);
  }
}

TEST(FlexAttention, ThreadsGiveTheSame) {
  const Inputs x(13, {2, 4, 150, 8}, {2, 2, 150, 8});
  const auto mask = create_block_mask(causal_mask(), 1, 1, 150, 150, 16);
  const auto run = [&](int threads) {
    const int before = at::get_num_threads();
    at::set_num_threads(threads);
    const at::Tensor q = reference::leaf(x.q);
    const at::Tensor k = reference::leaf(x.k);
    const at::Tensor v = reference::leaf(x.v);
    const at::Tensor out = flex_attention(q, k, v, {.block_mask = mask, .enable_gqa = true});
    auto all = reference::gradients(out, {q, k, v}, x.q);
    all.push_back(out);
    at::set_num_threads(before);
    return all;
  };
  const auto one = run(1);
  const auto three = run(3);
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::equal(one[i], three[i])) << i;
}

TEST(FlexAttention, HalfTypesAreComputedInFloat) {
  for (const auto type : {at::kHalf, at::kBFloat16, at::kFloat}) {
    const Inputs x(14, {1, 2, 64, 16}, {1, 2, 64, 16}, type);
    const auto mask = create_block_mask(causal_mask(), 1, 1, 64, 64, 16);
    const at::Tensor expected = x.expected(create_mask(causal_mask(), 1, 1, 64, 64));
    const at::Tensor out = flex_attention(x.q, x.k, x.v, {.block_mask = mask});
    EXPECT_EQ(out.scalar_type(), type);
    // The only rounding to the half type is that of the result.
    if (type != at::kFloat) {
      EXPECT_LT(distance(out, expected.to(type)), type == at::kHalf ? 2e-3 : 2e-2);
      EXPECT_LT(
          out.to(at::kDouble).sub(expected.to(type).to(at::kDouble)).ne(0).sum().item<int64_t>(),
          out.numel() / 100);
    } else {
      EXPECT_LT(distance(out, expected), 1e-5);
    }
  }
}

TEST(FlexAttention, InfiniteKeysThatAreMaskedInEmptyBlocksDoNoHarm) {
  Inputs x(15, {1, 1, 8, 4}, {1, 1, 8, 4});
  const auto mask = create_block_mask(causal_mask(), 1, 1, 8, 8, 4);
  const at::Tensor before = flex_attention(x.q, x.k, x.v, {.block_mask = mask});
  x.k.narrow(2, 4, 4).fill_(std::numeric_limits<double>::quiet_NaN());
  const at::Tensor after = flex_attention(x.q, x.k, x.v, {.block_mask = mask});
  EXPECT_TRUE(at::equal(before.narrow(2, 0, 4), after.narrow(2, 0, 4)));
}

// Work

TEST(FlexAttention, MaskFunctionIsAskedForPartialBlocksOnly) {
  int64_t asked = 0;
  const MaskFn counting = [&](const at::Tensor& b, const at::Tensor& h, const at::Tensor& q,
                              const at::Tensor& kv) {
    asked += b.numel() * h.numel() * q.numel() * kv.numel();
    return q.ge(kv);
  };
  const auto mask = create_block_mask(counting, 1, 1, 64, 64, 8);
  const Inputs x(16, {1, 1, 64, 4}, {1, 1, 64, 4});
  asked = 0;
  flex_attention(x.q, x.k, x.v, {.block_mask = mask});
  EXPECT_EQ(asked, 8 * 8 * 8);
}

TEST(FlexAttention, ScoresAreMadeForKeptBlocksOnly) {
  int64_t made = 0;
  const ScoreFn counting = [&](const at::Tensor& score, const at::Tensor& b, const at::Tensor& h,
                               const at::Tensor& q, const at::Tensor& kv) {
    EXPECT_EQ(score.sizes(), (std::vector<int64_t>{b.size(0), h.size(1), q.size(2), kv.size(3)}));
    made += score.numel();
    return score;
  };
  const Inputs x(17, {2, 3, 64, 4}, {2, 3, 64, 4});
  const MaskFn first_and_last = [](const at::Tensor&, const at::Tensor&, const at::Tensor& q,
                                   const at::Tensor& kv) {
    return q.ge(kv).logical_and(kv.lt(8).logical_or(kv.ge(56)));
  };
  const auto mask = create_block_mask(first_and_last, 1, 1, 64, 64, 8);
  flex_attention(x.q, x.k, x.v, {.score_fn = counting, .block_mask = mask});
  EXPECT_EQ(made, 6 * 9 * 64);
}

TEST(FlexAttention, ScoreFunctionSeesTheTruePositions) {
  const Inputs x(18, {2, 2, 24, 4}, {2, 2, 24, 4});
  const MaskFn gaps = [](const at::Tensor&, const at::Tensor&, const at::Tensor&,
                         const at::Tensor& kv) { return kv.lt(4).logical_or(kv.ge(17)); };
  const auto mask = create_block_mask(gaps, 1, 1, 24, 24, 4);
  const ScoreFn relative = [](const at::Tensor& score, const at::Tensor& b, const at::Tensor& h,
                              const at::Tensor& q, const at::Tensor& kv) {
    const at::Tensor distance = kv.sub(q).to(score.scalar_type());
    return score.add(distance.mul(h.add(1)).mul(0.1))
        .add(b.mul(q).to(score.scalar_type()).mul(0.01));
  };
  const at::Tensor i = at::arange(24, at::kDouble);
  const at::Tensor h = at::arange(2, at::kDouble).view({1, 2, 1, 1});
  const at::Tensor b = at::arange(2, at::kDouble).view({2, 1, 1, 1});
  const at::Tensor bias = i.view({1, 24})
                              .sub(i.view({24, 1}))
                              .mul(h.add(1))
                              .mul(0.1)
                              .add(b.mul(i.view({24, 1})).mul(0.01));
  EXPECT_LT(
      distance(flex_attention(x.q, x.k, x.v, {.score_fn = relative, .block_mask = mask}),
               reference::attention(x.q, x.k, x.v, create_mask(gaps, 1, 1, 24, 24), x.scale, bias)),
      kOutputExact);
}

TEST(FlexAttention, ScoreFunctionMayDropScores) {
  const Inputs x(19, {1, 2, 16, 4}, {1, 2, 16, 4});
  const ScoreFn drop = [](const at::Tensor& score, const at::Tensor&, const at::Tensor&,
                          const at::Tensor& q, const at::Tensor& kv) {
    return score.masked_fill(q.le(kv), -std::numeric_limits<double>::infinity());
  };
  const at::Tensor keep =
      reference::dense_mask([](auto, auto, auto q, auto kv) { return kv < q; }, 1, 1, 16, 16);
  EXPECT_LT(distance(flex_attention(x.q, x.k, x.v, {.score_fn = drop}), x.expected(keep)),
            kOutputExact);
}

// Misuse

TEST(FlexAttention, RefusesTensorsThatDoNotFit) {
  const Inputs x(20, {2, 4, 8, 4}, {2, 4, 8, 4}, at::kFloat);
  EXPECT_ERROR(
      flex_attention(x.q[0], x.k, x.v), ArgumentError,
      "query must be a dense tensor of shape [batch, heads, length, size], got Tensor[4, 8, "
      "4] float32");
  EXPECT_ERROR(flex_attention(x.q, {}, x.v), ArgumentError, "key must be a dense tensor");
  EXPECT_ERROR(flex_attention(x.q.to(at::kInt), x.k, x.v), ArgumentError,
               "query must be float32, float64, float16 or bfloat16, got Tensor[2, 4, 8, 4] int32");
  EXPECT_ERROR(
      flex_attention(x.q, x.k.to(at::kDouble), x.v), ArgumentError,
      "key is Tensor[2, 4, 8, 4] float64 but query is Tensor[2, 4, 8, 4] float32: one dtype");
  EXPECT_ERROR(flex_attention(x.q, x.k, x.v.to(at::kHalf)), ArgumentError, "value is Tensor");
  EXPECT_ERROR(flex_attention(x.q, x.k.narrow(3, 0, 3), x.v), ArgumentError,
               "must have the same last size");
  EXPECT_ERROR(flex_attention(x.q, x.k, x.v.narrow(2, 0, 7)), ArgumentError,
               "must have the same batch, heads and length");
  EXPECT_ERROR(
      flex_attention(x.q.narrow(0, 0, 1), x.k, x.v), ArgumentError,
      "the batch of key Tensor[2, 4, 8, 4] float32 must be 1 or that of query Tensor[1, 4, "
      "8, 4] float32");
}

TEST(FlexAttention, RefusesTensorsWithoutPlainValues) {
  const Inputs x(25, {2, 4, 8, 4}, {2, 4, 8, 4}, at::kFloat);
  const auto meta = [](const at::Tensor& t) { return t.to(at::kMeta); };
  EXPECT_ERROR(flex_attention(meta(x.q), meta(x.k), meta(x.v)), ArgumentError, "query is on meta");
  EXPECT_ERROR(flex_attention(x.q, meta(x.k), x.v), ArgumentError, "key is on meta");
  EXPECT_ERROR(flex_attention(x.q, x.k, x.v.to_sparse()), ArgumentError,
               "value must be a dense tensor, got a Sparse one");
  const at::Tensor nested = at::_nested_tensor_from_tensor_list({x.q[0], x.q[1].narrow(1, 0, 5)});
  EXPECT_ERROR(flex_attention(nested, x.k, x.v), ArgumentError,
               "query must be a dense tensor, got a nested one");
}

TEST(FlexAttention, RefusesHeadsThatDoNotFit) {
  const Inputs x(21, {2, 4, 8, 4}, {2, 2, 8, 4});
  EXPECT_ERROR(flex_attention(x.q, x.k, x.v), ArgumentError,
               "query has 4 heads, key and value have 2; set enable_gqa to share them");
  EXPECT_ERROR(flex_attention(x.q.narrow(1, 0, 3), x.k, x.v, {.enable_gqa = true}), ArgumentError,
               "the 3 heads of query must be a multiple of the 2 heads of key and value");
  EXPECT_ERROR(flex_attention(x.q, x.k.narrow(1, 0, 0), x.v.narrow(1, 0, 0), {.enable_gqa = true}),
               ArgumentError, "a multiple of the 0 heads");
}

TEST(FlexAttention, RefusesMasksThatDoNotFit) {
  const Inputs x(22, {4, 4, 8, 4}, {4, 4, 8, 4});
  const auto run = [&](int64_t batch, int64_t heads, int64_t q_len, int64_t kv_len) {
    return flex_attention(
        x.q, x.k, x.v,
        {.block_mask = create_block_mask(causal_mask(), batch, heads, q_len, kv_len, 4)});
  };
  EXPECT_ERROR(run(2, 1, 8, 8), ArgumentError, "the batch of BlockMask[2, 1, 8, 8]");
  EXPECT_ERROR(run(1, 2, 8, 8), ArgumentError, "the heads of BlockMask[1, 2, 8, 8]");
  EXPECT_ERROR(run(1, 1, 9, 8), ArgumentError,
               "is for 9 queries and 8 keys, but query has 8 and key has 8");
  EXPECT_ERROR(run(1, 1, 8, 7), ArgumentError, "is for 8 queries and 7 keys");
}

TEST(FlexAttention, RefusesFunctionsThatReturnSomethingElse) {
  const Inputs x(23, {1, 1, 8, 4}, {1, 1, 8, 4});
  const auto scoring = [&](at::Tensor value) {
    return flex_attention(x.q, x.k, x.v, {.score_fn = [value](const auto&...) { return value; }});
  };
  EXPECT_ERROR(scoring(at::ones({8, 7})), ArgumentError,
               "the score function must return scores of shape [1, 1, 8, 8], got Tensor[8, 7]");
  EXPECT_ERROR(scoring(at::ones({1, 1, 8, 8}, at::kBool)), ArgumentError, "bool");
  EXPECT_ERROR(scoring({}), ArgumentError, "Tensor undefined");
  const auto shape = create_block_mask(causal_mask(), 1, 1, 8, 8, 4);
  const MaskFn wrong = [](const at::Tensor&, const at::Tensor&, const at::Tensor& q,
                          const at::Tensor& kv) { return q.sub(kv); };
  const auto mask =
      BlockMask::from_kv_blocks(shape->kv_num_blocks(), shape->kv_indices(), {}, {}, 4, wrong);
  EXPECT_ERROR(flex_attention(x.q, x.k, x.v, {.block_mask = mask}), ArgumentError,
               "the mask function must return a bool tensor, got Tensor[1, 1, 4, 4] int64");
}

}  // namespace
}  // namespace stagecraft
