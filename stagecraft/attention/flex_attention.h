#pragma once

#include <functional>
#include <optional>

#include <ATen/core/Tensor.h>

#include "stagecraft/attention/block_mask.h"

namespace stagecraft {

/// Changes scores before the softmax. `score` is a tile [B, H, Q, KV] of the scaled scores; the
/// other arguments are those of a MaskFn, and kv may have gaps. Returns a tensor of the same shape:
///
///   ScoreFn bias = [slope](const auto& score, const auto&, const auto& h, const auto& q,
///                          const auto& kv) { return score + slope.index({h}) * (kv - q); };
///
/// Scores of half types are passed as float32. Gradients flow through the function, and into
/// tensors that it captured. It runs without autocast; its backward runs with the autocast state of
/// the caller of backward.
using ScoreFn =
    std::function<at::Tensor(const at::Tensor& score, const at::Tensor& b, const at::Tensor& h,
                             const at::Tensor& q, const at::Tensor& kv)>;

/// Options of flex_attention.
struct FlexAttentionOptions {
  /// None: the scores as they are.
  ScoreFn score_fn = {};
  /// None: every key is kept for every query. Its batch and heads are 1 or those of the query; its
  /// lists may be on any device.
  c10::intrusive_ptr<BlockMask> block_mask = {};
  /// None: 1 / sqrt(head size).
  std::optional<double> scale = {};
  /// Lets neighbouring heads of the query share one head of key and value.
  bool enable_gqa = false;
};

/// softmax(mask(score_fn(scale * query key^T))) value, computed for the kept blocks only.
///
///   query [batch, heads, q_len, size]   key [batch, kv_heads, kv_len, size]
///   value [batch, kv_heads, kv_len, value_size]   result [batch, heads, q_len, value_size]
///
/// all of one floating dtype on one device; key and value may have batch 1 for any batch. The
/// result of a query without kept keys is 0, and the query gets no gradient. Without score_fn, the
/// result of a query whose kept scores all overflow to -infinity is NaN. Autocast has no effect,
/// here and in backward.
///
/// Differentiable any number of times. Without score_fn the first backward computes the scores
/// again instead of keeping them and calls the mask function again, perhaps on a different thread.
///
/// Half types with score_fn, or not on CUDA, are computed in float32. On CUDA without score_fn they
/// are multiplied as they are, with sums in float32, by torch's fused attention where the mask
/// allows it. The first call with a mask then calls the mask function for all scores and waits for
/// the device; later calls reuse the plan that it made. Such a result is differentiable once, its
/// gradients may differ in their last bits from call to call, and scores that overflow are not
/// specified.
///
/// Throws ArgumentError for tensors and masks that do not fit together, and for tensors that are
/// nested, sparse or on the meta device.
at::Tensor flex_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const FlexAttentionOptions& options = {});

}  // namespace stagecraft
