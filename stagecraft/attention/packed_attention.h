#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "stagecraft/attention/attention_plan.h"
#include "stagecraft/attention/packed_plan.h"

namespace stagecraft::detail {

/// Where the members of a batch go when their tensors [batch, heads, length, size] become one
/// packed sequence [tokens, heads, size].
enum class PackedLayout : uint8_t {
  kAsHeads,   ///< Members become heads: one mask serves all, and heads come first in memory.
  kAsTokens,  ///< Members follow one another.
};

/// The layout that needs the fewest copies of `q`.
PackedLayout choose_packed_layout(const AttentionProblem& problem, const at::Tensor& q);

/// The boundaries of the segments as fused kernels take them.
struct PackedSequences {
  bool causal = false;
  std::optional<int64_t> window;
  /// int32 on the device, one more than segments: where each segment begins.
  at::Tensor cumulative_q;
  at::Tensor cumulative_kv;
  /// The longest segment.
  int64_t max_q = 0;
  int64_t max_kv = 0;
};

/// The sequences of a plan whose members are repeated `copies` times. Waits for the device.
PackedSequences list_sequences(const PackedPlan& plan, int64_t copies, at::Device device);

/// Whether torch has a fused kernel for packed sequences that takes these tensors. Tries it once
/// for each device and dtype.
bool has_packed_kernel(const at::Tensor& q, const at::Tensor& v);

/// Attention within the segments, by torch's fused kernel and its gradient. Differentiable once.
at::Tensor packed_attention(const AttentionProblem& problem, const PackedSequences& sequences,
                            PackedLayout layout, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v);

}  // namespace stagecraft::detail
