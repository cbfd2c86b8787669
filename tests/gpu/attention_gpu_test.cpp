#include <array>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/index.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/stack.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/autograd.h>

#include "stagecraft/attention/create_block_mask.h"
#include "stagecraft/attention/flex_attention.h"
#include "stagecraft/attention/mask_fns.h"
#include "stagecraft/runtime/pipeline.h"
#include "stagecraft/stage/callable.h"
#include "stagecraft/tree/opaque.h"
#include "tests/gpu/gpu_test.h"

namespace stagecraft {
namespace {

using AttentionGpu = GpuTest;
constexpr int64_t kLength = 300;

struct Result {
  at::Tensor out;
  std::array<at::Tensor, 3> grads;
};

// Attention on copies of the inputs on `device`, with results back on the CPU.
Result attend(const std::array<at::Tensor, 3>& inputs, const at::Tensor& grad_out,
              at::Device device, const FlexAttentionOptions& options) {
  std::array<at::Tensor, 3> x;
  for (std::size_t i = 0; i < 3; ++i) {
    x[i] = inputs[i].detach().to(device).set_requires_grad(true);
  }
  const at::Tensor out = flex_attention(x[0], x[1], x[2], options);
  EXPECT_EQ(out.device().type(), device.type());
  out.backward(grad_out.to(device));
  return {out.detach().cpu(), {x[0].grad().cpu(), x[1].grad().cpu(), x[2].grad().cpu()}};
}

void expect_same(const Result& a, const Result& b, double tolerance) {
  const auto close = [&](const at::Tensor& x, const at::Tensor& y) {
    return at::allclose(x.to(at::kFloat), y.to(at::kFloat), tolerance, tolerance);
  };
  EXPECT_TRUE(close(a.out, b.out));
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(close(a.grads[i], b.grads[i])) << "input " << i;
}

at::Tensor documents() {
  return at::arange(kLength).floor_divide(70);
}

MaskFn scattered() {
  return [](const at::Tensor& b, const at::Tensor& h, const at::Tensor& q, const at::Tensor& kv) {
    return q.floor_divide(16).add(kv.floor_divide(16)).add(b).remainder(h.add(3)).eq(0);
  };
}

std::array<at::Tensor, 3> inputs(int64_t kv_heads) {
  return {at::randn({2, 4, kLength, 32}), at::randn({2, kv_heads, kLength, 32}),
          at::randn({2, kv_heads, kLength, 48})};
}

TEST_F(AttentionGpu, EqualsTheCpuForEveryKindOfMask) {
  const at::Tensor grad_out = at::randn({2, 4, kLength, 48});
  const auto check = [&](const MaskFn& on_cpu, const MaskFn& on_gpu, int64_t batch, int64_t heads) {
    const auto x = inputs(4);
    const auto cpu_mask = create_block_mask(on_cpu, batch, heads, kLength, kLength, 32);
    const auto gpu_mask = create_block_mask(on_gpu, batch, heads, kLength, kLength, 32, gpu_);
    EXPECT_TRUE(gpu_mask->kv_indices().is_cuda());
    EXPECT_TRUE(at::equal(gpu_mask->kv_indices().cpu(), cpu_mask->kv_indices()));
    EXPECT_TRUE(at::equal(gpu_mask->full_q_indices().cpu(), cpu_mask->full_q_indices()));
    const auto expected = attend(x, grad_out, at::kCPU, {.block_mask = cpu_mask});
    expect_same(attend(x, grad_out, gpu_, {.block_mask = gpu_mask}), expected, 1e-4);
    // Lists that lie on the host serve as well.
    const auto moved = gpu_mask->to(at::kCPU);
    expect_same(attend(x, grad_out, gpu_, {.block_mask = moved}), expected, 1e-4);
  };
  check(causal_mask(), causal_mask(), 1, 1);
  check(sliding_window_mask(40), sliding_window_mask(40), 1, 1);
  check(document_mask(documents()), document_mask(documents().to(gpu_)), 1, 1);
  check(scattered(), scattered(), 2, 4);
}

TEST_F(AttentionGpu, EqualsTheCpuWithScoresGroupsAndNoMask) {
  const at::Tensor grad_out = at::randn({2, 4, kLength, 48});
  const auto x = inputs(2);
  const auto options = [&](at::Device device) {
    const at::Tensor slope = at::arange(4).to(at::kFloat).mul(0.1).to(device);
    FlexAttentionOptions found;
    found.score_fn = [slope](const at::Tensor& score, const at::Tensor&, const at::Tensor& h,
                             const at::Tensor& q, const at::Tensor& kv) {
      return score.sub(at::index(slope, {h}).mul(q.sub(kv).abs()));
    };
    found.enable_gqa = true;
    found.scale = 0.3;
    return found;
  };
  expect_same(attend(x, grad_out, gpu_, options(gpu_)),
              attend(x, grad_out, at::kCPU, options(at::kCPU)), 1e-4);
  expect_same(attend(x, grad_out, gpu_, {.enable_gqa = true}),
              attend(x, grad_out, at::kCPU, {.enable_gqa = true}), 1e-4);
}

/// |a - b| / |b| in float64.
double relative_error(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor wide = b.to(at::kDouble);
  return a.to(at::kDouble).sub(wide).norm().item<double>() / wide.norm().item<double>();
}

// Attention of half types on the device against float64 on the CPU with the same inputs.
void expect_half_close(const MaskFn& on_cpu, const MaskFn& on_gpu, at::IntArrayRef q_shape,
                       at::IntArrayRef k_shape, int64_t value_size, int64_t mask_batch = 1,
                       int64_t mask_heads = 1) {
  const at::Device gpu(at::kCUDA, 0);
  const auto cpu_mask =
      create_block_mask(on_cpu, mask_batch, mask_heads, q_shape[2], k_shape[2], 32);
  const auto gpu_mask =
      create_block_mask(on_gpu, mask_batch, mask_heads, q_shape[2], k_shape[2], 32, gpu);
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    for (const bool positions_first : {false, true}) {
      SCOPED_TRACE(c10::str(type, positions_first ? ", positions before heads" : ""));
      const auto make = [&](at::IntArrayRef shape, int64_t size) {
        at::Tensor x = at::randn({shape[0], shape[1], shape[2], size}).to(type);
        return positions_first ? x.transpose(1, 2).contiguous().transpose(1, 2) : x;
      };
      const std::array<at::Tensor, 3> half = {make(q_shape, q_shape[3]), make(k_shape, k_shape[3]),
                                              make(k_shape, value_size)};
      const at::Tensor grad_out = make(q_shape, value_size);
      std::array<at::Tensor, 3> wide;
      for (std::size_t i = 0; i < 3; ++i) wide[i] = half[i].to(at::kDouble);
      FlexAttentionOptions options{.block_mask = cpu_mask, .scale = 0.2, .enable_gqa = true};
      const Result expected = attend(wide, grad_out.to(at::kDouble), at::kCPU, options);
      options.block_mask = gpu_mask;
      const Result found = attend(half, grad_out, gpu, options);
      // Two roundings of a probability and one of the result.
      const double limit = type == at::kBFloat16 ? 1.2e-2 : 1.5e-3;
      EXPECT_EQ(found.out.scalar_type(), type);
      EXPECT_LT(relative_error(found.out, expected.out), limit);
      for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(found.grads[i].scalar_type(), type);
        EXPECT_LT(relative_error(found.grads[i], expected.grads[i]), limit) << "input " << i;
      }
    }
  }
}

TEST_F(AttentionGpu, HalfTypesAreCloseToFloat64ForEveryKindOfMask) {
  const at::Tensor ids = documents();
  const at::Tensor gpu_ids = ids.to(gpu_);
  const MaskFn prefix = [](const at::Tensor&, const at::Tensor&, const at::Tensor& q,
                           const at::Tensor& kv) { return kv.lt(50).logical_or(kv.le(q)); };
  const MaskFn some_dead = [](const at::Tensor&, const at::Tensor&, const at::Tensor& q,
                              const at::Tensor& kv) {
    return q.remainder(3).ne(0).logical_and(kv.add(q).remainder(5).eq(0));
  };
  const struct {
    const char* name;
    MaskFn cpu, gpu;
    int64_t batch = 1;
    int64_t heads = 1;
  } masks[] = {{"all", no_mask(), no_mask()},
               {"causal", causal_mask(), causal_mask()},
               {"documents", document_mask(ids), document_mask(gpu_ids)},
               {"causal documents", and_masks({causal_mask(), document_mask(ids)}),
                and_masks({causal_mask(), document_mask(gpu_ids)})},
               {"window", sliding_window_mask(40), sliding_window_mask(40)},
               {"window in documents", and_masks({sliding_window_mask(40), document_mask(ids)}),
                and_masks({sliding_window_mask(40), document_mask(gpu_ids)})},
               {"documents without a partner", document_mask(ids, ids.add(1)),
                document_mask(gpu_ids, gpu_ids.add(1))},
               {"prefix", prefix, prefix},
               {"some queries keep nothing", some_dead, some_dead},
               {"by member and head", scattered(), scattered(), 2, 4}};
  for (const auto& mask : masks) {
    SCOPED_TRACE(mask.name);
    const auto check = [&](at::IntArrayRef q, at::IntArrayRef k, int64_t value_size) {
      SCOPED_TRACE(c10::str(q, " ", k, " ", value_size));
      expect_half_close(mask.cpu, mask.gpu, q, k, value_size, mask.batch, mask.heads);
    };
    check({2, 4, kLength, 64}, {2, 4, kLength, 64}, 64);
    check({2, 4, kLength, 32}, {2, 2, kLength, 32}, 48);
    check({2, 4, kLength, 20}, {1, 1, kLength, 20}, 20);
  }
  // Documents of each member; other numbers of keys than queries.
  const at::Tensor two = at::stack({ids, ids.add(1).floor_divide(2)});
  expect_half_close(document_mask(two), document_mask(two.to(gpu_)), {2, 4, kLength, 64},
                    {2, 4, kLength, 64}, 64, 2);
  expect_half_close(causal_mask(), causal_mask(), {2, 4, 200, 128}, {2, 4, kLength, 128}, 128);
  expect_half_close(causal_mask(), causal_mask(), {2, 4, kLength, 64}, {2, 4, 200, 64}, 64);
}

TEST_F(AttentionGpu, HalfTypesOnASecondStreamAndAfterTheMaskIsGone) {
  const auto x = inputs(4);
  std::array<at::Tensor, 3> half;
  for (std::size_t i = 0; i < 3; ++i) half[i] = x[i].to(at::kBFloat16);
  const at::Tensor grad_out = at::randn({2, 4, kLength, 48}).to(at::kBFloat16);
  const auto mask_of = [&] {
    return create_block_mask(document_mask(documents().to(gpu_)), 1, 1, kLength, kLength, 32, gpu_);
  };
  const auto expected = attend(half, grad_out, gpu_, {.block_mask = mask_of()});
  const auto mask = mask_of();
  attend(half, grad_out, gpu_, {.block_mask = mask});
  const c10::impl::VirtualGuardImpl impl(gpu_.type());
  const c10::StreamGuard guard(impl.getStreamFromGlobalPool(gpu_));
  const auto found = attend(half, grad_out, gpu_, {.block_mask = mask});
  EXPECT_TRUE(at::equal(found.out, expected.out));
}

// A mask for each member of the batch, which is split into microbatches, in steps that are
// captured.
TEST_F(AttentionGpu, HalfTypesAreReplayedAsGraphs) {
  const at::Tensor ids = at::stack({documents(), documents().add(1).floor_divide(2)});
  const auto documents_mask =
      create_block_mask(document_mask(ids.to(gpu_)), 2, 1, kLength, kLength, 32, gpu_);
  const auto any_mask =
      create_block_mask([](const at::Tensor& b, const at::Tensor&, const at::Tensor& q,
                           const at::Tensor& kv) { return kv.lt(b.add(20)).logical_or(kv.le(q)); },
                        2, 1, kLength, kLength, 32, gpu_);
  for (const auto& mask : {documents_mask, any_mask}) {
    SCOPED_TRACE(mask->describe());
    const at::Tensor weight = at::randn({64, 64}).to(gpu_).requires_grad_();
    const at::Tensor x = at::randn({2, kLength, 64}).to(gpu_);
    const auto run = [&](GraphMode graphs) {
      std::vector<Stage> stages;
      stages.emplace_back(StageId(0), 1,
                          stage_body(
                              [weight](const at::Tensor& input, const c10::IValue& keep) {
                                const at::Tensor y = at::linear(input, weight)
                                                         .to(at::kBFloat16)
                                                         .view({input.size(0), -1, 4, 16})
                                                         .transpose(1, 2);
                                return flex_attention(y, y, y,
                                                      {.block_mask = find_opaque<BlockMask>(keep)})
                                    .to(at::kFloat);
                              },
                              {{"w", weight}}),
                          StageOptions{.device = gpu_});
      PipelineOptions options{.schedule = "GPipe", .ranks = 1, .graphs = graphs};
      options.loss = [](const at::Tensor& y, const at::Tensor&) { return y.mul(y).mean(); };
      Pipeline pipeline(std::move(stages), options);
      std::vector<at::Tensor> grads;
      for (int step = 0; step < 5; ++step) {
        pipeline.step({x, make_opaque(mask)}, {}, x, {.microbatches = 2});
        grads.push_back(weight.grad().clone());
        weight.mutable_grad().reset();
      }
      return std::pair(grads, pipeline.launches());
    };
    const auto [expected, run_counts] = run(GraphMode::kOff);
    const auto [found, counts] = run(GraphMode::kAuto);
    EXPECT_EQ(counts.replayed, 3) << counts.reason;
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_LT(relative_error(found[i], expected[i]), 1e-2) << "step " << i;
    }
  }
}

TEST_F(AttentionGpu, TheSecondDerivativeOfHalfTypesIsRefusedByName) {
  const at::Tensor q = at::randn({1, 2, 64, 32}, at::TensorOptions(gpu_)).to(at::kBFloat16);
  const at::Tensor x = q.detach().set_requires_grad(true);
  const auto mask = create_block_mask(causal_mask(), 1, 1, 64, 64, 32, gpu_);
  const at::Tensor out = flex_attention(x, x, x, {.block_mask = mask});
  const auto first = torch::autograd::grad({out.sum()}, {x}, {}, true, /*create_graph=*/true);
  try {
    torch::autograd::grad({first[0].sum()}, {x});
    ADD_FAILURE() << "no error";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("attention"), std::string::npos) << error.what();
  }
}

TEST_F(AttentionGpu, IsTheSameTwice) {
  const auto x = inputs(4);
  const at::Tensor grad_out = at::randn({2, 4, kLength, 48});
  const auto mask = create_block_mask(scattered(), 2, 4, kLength, kLength, 16, gpu_);
  const auto first = attend(x, grad_out, gpu_, {.block_mask = mask});
  const auto second = attend(x, grad_out, gpu_, {.block_mask = mask});
  EXPECT_TRUE(at::equal(first.out, second.out));
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(at::equal(first.grads[i], second.grads[i])) << "input " << i;
  }
}

}  // namespace
}  // namespace stagecraft
