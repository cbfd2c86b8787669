#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "stagecraft/attention/block_mask.h"
#include "stagecraft/attention/mask_fns.h"

// Attention the slow way, to compare with: every score is made, every index is asked one by one.

namespace stagecraft::reference {

/// Whether a single score is kept.
using Rule = std::function<bool(int64_t b, int64_t h, int64_t q, int64_t kv)>;

/// bool [batch, heads, q_len, kv_len], by a loop over all indices.
at::Tensor dense_mask(const Rule& rule, int64_t batch, int64_t heads, int64_t q_len,
                      int64_t kv_len);

/// Numbers from a seed.
class Picks {
 public:
  explicit Picks(uint32_t seed) : source_(seed) {}
  /// One of low..high, both included.
  int64_t operator()(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(source_);
  }

 private:
  std::mt19937 source_;
};

/// Sizes of an attention, and a mask for it that keeps rectangles of scores here and there. The
/// mask's batch and heads are those of the attention, or 1.
struct RandomCase {
  int64_t batch, kv_heads, heads, q_len, kv_len;
  at::Tensor dense;

  RandomCase(uint32_t seed, Picks& pick, int64_t longest);
};

/// The mask function that looks its answer up in `dense`; where its batch or heads are 1, for all.
MaskFn lookup(const at::Tensor& dense);

/// The kinds of the blocks of a dense mask, by a loop over all elements.
std::vector<BlockKind> block_kinds(const at::Tensor& dense, BlockSize block);

/// Differentiable dense attention; `keep` broadcasts to the scores, `bias` may be undefined. Heads
/// of key and value are repeated to those of the query. Rows that keep nothing are 0.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const at::Tensor& keep, double scale, const at::Tensor& bias = {});

/// The gradients of sum(out * weight), undefined ones as zeros.
std::vector<at::Tensor> gradients(const at::Tensor& out, const std::vector<at::Tensor>& inputs,
                                  const at::Tensor& weight);

/// The largest absolute difference; infinity for NaN or a different shape.
double distance(const at::Tensor& a, const at::Tensor& b);

at::Tensor random(at::Generator& generator, at::IntArrayRef shape,
                  at::ScalarType type = at::kDouble);
at::Generator seeded(uint64_t seed);

/// A copy of `x` that wants its gradient.
at::Tensor leaf(const at::Tensor& x);

}  // namespace stagecraft::reference
