#include <array>

#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/index.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>

#include "stagecraft/attention/create_block_mask.h"
#include "stagecraft/attention/flex_attention.h"
#include "stagecraft/attention/mask_fns.h"
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

TEST_F(AttentionGpu, HalfTypesStayClose) {
  const at::Tensor grad_out = at::randn({2, 4, kLength, 48});
  auto x = inputs(4);
  const auto mask = create_block_mask(causal_mask(), 1, 1, kLength, kLength, 32, gpu_);
  const auto expected = attend(x, grad_out, gpu_, {.block_mask = mask});
  for (auto& tensor : x) tensor = tensor.to(at::kBFloat16);
  const auto half = attend(x, grad_out.to(at::kBFloat16), gpu_, {.block_mask = mask});
  EXPECT_EQ(half.out.scalar_type(), at::kBFloat16);
  expect_same(half, expected, 0.1);
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
