#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/attention/block_mask.h"
#include "stagecraft/attention/evaluate_mask.h"

namespace stagecraft::detail {

/// The scores that `mask` keeps for the queries `q` of some members and heads: bool with the shape
/// [members or 1, heads or 1, queries, keys]. Full blocks are kept and empty blocks are not,
/// without calling the mask function for them. Waits for the device.
at::Tensor kept_scores(const BlockMask& mask, IndexRange b, IndexRange h, IndexRange q,
                       at::Device device);

/// For each query the smallest range of keys that contains all keys kept for it, on the host.
struct KeptKeys {
  int64_t batch = 0;
  int64_t heads = 0;
  int64_t q_len = 0;
  int64_t kv_len = 0;
  /// [batch, heads, q_len]; {0, 0} for a query that keeps nothing.
  std::vector<IndexRange> ranges;
  /// Whether every query keeps all keys of its range.
  bool without_gaps = true;

  const IndexRange& at(int64_t b, int64_t h, int64_t q) const {
    return ranges[static_cast<std::size_t>((b * heads + h) * q_len + q)];
  }
};

/// Calls the mask function for all scores, in parts of bounded size. Waits for the device. The
/// mask must have queries and keys.
KeptKeys find_kept_keys(const BlockMask& mask, at::Device device);

/// Calls `use(b, h, q, kept)` for parts of the mask of bounded size that cover it: each part is one
/// (b, h) and at least `step` queries. The number of queries is a multiple of `step`, except in the
/// last part.
template <typename Use>
void for_each_part(const BlockMask& mask, int64_t step, at::Device device, const Use& use) {
  constexpr int64_t kMaxPartScores = int64_t{1} << 24;
  const auto [batch, heads, q_len, kv_len] = mask.shape();
  const int64_t steps = std::max<int64_t>(1, kMaxPartScores / (step * kv_len));
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t q = 0; q < q_len; q += steps * step) {
        const IndexRange rows{q, std::min(q + steps * step, q_len)};
        use(b, h, rows, kept_scores(mask, {b, b + 1}, {h, h + 1}, rows, device));
      }
    }
  }
}

}  // namespace stagecraft::detail
