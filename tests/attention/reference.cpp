#include "tests/attention/reference.h"

#include <algorithm>
#include <limits>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/any.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

namespace stagecraft::reference {

at::Tensor dense_mask(const Rule& rule, int64_t batch, int64_t heads, int64_t q_len,
                      int64_t kv_len) {
  at::Tensor mask = at::empty({batch, heads, q_len, kv_len}, at::kBool);
  bool* out = mask.mutable_data_ptr<bool>();
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t q = 0; q < q_len; ++q) {
        for (int64_t kv = 0; kv < kv_len; ++kv) *out++ = rule(b, h, q, kv);
      }
    }
  }
  return mask;
}

RandomCase::RandomCase(uint32_t seed, Picks& pick, int64_t longest)
    : batch(pick(1, 3)),
      kv_heads(pick(1, 2)),
      heads(kv_heads * pick(1, 3)),
      q_len(pick(1, longest)),
      kv_len(pick(1, longest)) {
  const int64_t cell = pick(1, 20);
  const int64_t keep_of = pick(2, 4);
  const int64_t mask_batch = pick(0, 1) == 0 ? 1 : batch;
  const int64_t mask_heads = pick(0, 1) == 0 ? 1 : heads;
  dense = dense_mask(
      [&](auto b, auto h, auto q, auto kv) {
        return (b * 7 + h * 5 + q / cell * 3 + kv / cell * 11 + seed) % keep_of == 0;
      },
      mask_batch, mask_heads, q_len, kv_len);
}

MaskFn lookup(const at::Tensor& dense) {
  return [dense](const at::Tensor& b, const at::Tensor& h, const at::Tensor& q,
                 const at::Tensor& kv) {
    const at::Tensor zero = at::zeros_like(b.flatten().narrow(0, 0, 1)).view({1, 1, 1, 1});
    return at::index(dense, {dense.size(0) == 1 ? zero : b, dense.size(1) == 1 ? zero : h, q, kv});
  };
}

std::vector<BlockKind> block_kinds(const at::Tensor& dense, BlockSize block) {
  const int64_t rows = (dense.size(2) + block.q - 1) / block.q;
  const int64_t columns = (dense.size(3) + block.kv - 1) / block.kv;
  const bool* in = dense.const_data_ptr<bool>();
  std::vector<int64_t> kept(
      static_cast<std::size_t>(dense.size(0) * dense.size(1) * rows * columns));
  for (int64_t bh = 0; bh < dense.size(0) * dense.size(1); ++bh) {
    for (int64_t q = 0; q < dense.size(2); ++q) {
      for (int64_t kv = 0; kv < dense.size(3); ++kv) {
        kept[static_cast<std::size_t>((bh * rows + q / block.q) * columns + kv / block.kv)] +=
            *in++;
      }
    }
  }
  std::vector<BlockKind> kinds;
  for (int64_t n : kept) {
    kinds.push_back(n == 0                    ? BlockKind::kEmpty
                    : n == block.q * block.kv ? BlockKind::kFull
                                              : BlockKind::kPartial);
  }
  return kinds;
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const at::Tensor& keep, double scale, const at::Tensor& bias) {
  const int64_t group = q.size(1) / k.size(1);
  const at::Tensor all_k = k.repeat_interleave(group, 1);
  const at::Tensor all_v = v.repeat_interleave(group, 1);
  at::Tensor scores = q.matmul(all_k.transpose(2, 3)).mul(scale);
  if (bias.defined()) scores = scores.add(bias);
  // Not infinite, so that a row without any is finite.
  scores = scores.masked_fill(keep.logical_not(), -1e30);
  const at::Tensor some = keep.any(-1, true);
  return scores.softmax(-1).masked_fill(some.logical_not(), 0).matmul(all_v);
}

std::vector<at::Tensor> gradients(const at::Tensor& out, const std::vector<at::Tensor>& inputs,
                                  const at::Tensor& weight) {
  auto grads = torch::autograd::grad({out}, inputs, {weight}, /*retain_graph=*/true,
                                     /*create_graph=*/false, /*allow_unused=*/true);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!grads[i].defined()) grads[i] = at::zeros_like(inputs[i]);
  }
  return grads;
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (a.sizes() != b.sizes()) return kInfinity;
  if (a.numel() == 0) return 0;
  const auto d =
      a.detach().to(at::kDouble).sub(b.detach().to(at::kDouble)).abs().max().item<double>();
  return d == d ? d : kInfinity;
}

at::Tensor random(at::Generator& generator, at::IntArrayRef shape, at::ScalarType type) {
  return at::randn(shape, generator, at::TensorOptions(at::kDouble)).to(type);
}

at::Generator seeded(uint64_t seed) {
  return at::detail::createCPUGenerator(seed);
}

at::Tensor leaf(const at::Tensor& x) {
  return x.detach().clone().set_requires_grad(true);
}

}  // namespace stagecraft::reference
