#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "stagecraft/attention/block_mask.h"

namespace stagecraft {

/// Asks `mask_fn` for every score and lists which blocks are empty, partial and full. A block that
/// reaches beyond the lengths is never full. Pass 1 for batch or heads if the mask does not depend
/// on them. The mask is then valid for any number of them. The dense mask is made in parts of
/// bounded size, never as a whole.
///
///   auto mask = create_block_mask(causal_mask(), 1, 1, 4096, 4096);
///   auto out = flex_attention(q, k, v, {.block_mask = mask});
///
/// Throws ArgumentError for negative sizes, blocks without a size, more blocks than a BlockGrid
/// takes, and a function that does not return what MaskFn promises.
c10::intrusive_ptr<BlockMask> create_block_mask(MaskFn mask_fn, int64_t batch, int64_t heads,
                                                int64_t q_len, int64_t kv_len,
                                                BlockSize block_size = {},
                                                at::Device device = at::kCPU);

/// The dense mask: bool [batch, heads, q_len, kv_len].
at::Tensor create_mask(const MaskFn& mask_fn, int64_t batch, int64_t heads, int64_t q_len,
                       int64_t kv_len, at::Device device = at::kCPU);

}  // namespace stagecraft
