#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace stagecraft {

/// Says which scores are kept. It is called with int64 index tensors that broadcast against each
/// other, for whole tiles of the score matrix at once:
///
///   b [B, 1, 1, 1]   h [1, H, 1, 1]   q [1, 1, Q, 1]   kv [1, 1, 1, KV]
///
/// and returns a bool tensor that broadcasts to [B, H, Q, KV]; true keeps the score. A result that
/// does not depend on b or h should leave that size 1, so that one tile is made for all of them:
///
///   MaskFn causal = [](const auto&, const auto&, const auto& q, const auto& kv) {
///     return q.ge(kv);
///   };
///   MaskFn prefix = [n](const auto& b, const auto&, const auto&, const auto& kv) {
///     return kv.lt(n.index({b}));  // n: int64[B], a length for each member of the batch
///   };
///
/// The indices are positions in the tensors that the mask is used with and lie within their sizes.
/// For which tiles and how often the function is called is not specified. It must be a pure
/// function of the indices, may be called from several threads at once, and runs without autocast.
using MaskFn = std::function<at::Tensor(const at::Tensor& b, const at::Tensor& h,
                                        const at::Tensor& q, const at::Tensor& kv)>;

/// Keeps the scores that all of `masks` keep. Keeps everything if there are none.
MaskFn and_masks(std::vector<MaskFn> masks);

/// Keeps the scores that at least one of `masks` keeps. Keeps nothing if there are none.
MaskFn or_masks(std::vector<MaskFn> masks);

/// Keeps everything.
MaskFn no_mask();

/// Keeps kv <= q: a position sees itself and what came before.
MaskFn causal_mask();

/// Keeps q - window <= kv <= q: a position sees itself and the `window` positions before it.
/// `window` must not be negative.
MaskFn sliding_window_mask(int64_t window);

/// Keeps pairs of positions of the same document. `documents` gives an integer for each position:
/// [length] for all members of the batch, or [batch, length]. Combine it with causal_mask() by
/// and_masks for language models. Ids on a different device than the indices are copied at every
/// call.
MaskFn document_mask(const at::Tensor& documents);

/// The same for queries and keys of different lengths.
MaskFn document_mask(at::Tensor q_documents, at::Tensor kv_documents);

}  // namespace stagecraft
