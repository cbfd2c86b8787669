#include "stagecraft/attention/kept_keys.h"

#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/where.h>

namespace stagecraft::detail {
namespace {

/// The kinds of the blocks that the queries touch, one for each score: uint8.
at::Tensor kinds_of_scores(const BlockMask& mask, IndexRange b, IndexRange h, IndexRange q,
                           at::Device device) {
  const BlockGrid& grid = mask.grid();
  const BlockSize block = mask.block_size();
  const IndexRange rows{q.begin / block.q, (q.end - 1) / block.q + 1};
  at::Tensor kinds = at::empty({b.size(), h.size(), rows.size(), grid.columns()}, at::kByte);
  auto* out = kinds.mutable_data_ptr<uint8_t>();
  for (int64_t i = b.begin; i < b.end; ++i) {
    for (int64_t j = h.begin; j < h.end; ++j) {
      for (int64_t row = rows.begin; row < rows.end; ++row) {
        for (int64_t column = 0; column < grid.columns(); ++column) {
          *out++ = static_cast<uint8_t>(grid.at(i, j, row, column));
        }
      }
    }
  }
  // Only kv_len columns of scores exist. A block may be far larger than the lengths.
  const int64_t kv_len = mask.lengths().kv;
  const at::Tensor row_of =
      at::arange(q.begin, q.end, at::kLong).floor_divide(block.q).sub(rows.begin);
  const at::Tensor column_of = at::arange(kv_len, at::kLong).floor_divide(block.kv);
  return kinds.to(device).index_select(2, row_of.to(device)).index_select(3, column_of.to(device));
}

}  // namespace

at::Tensor kept_scores(const BlockMask& mask, IndexRange b, IndexRange h, IndexRange q,
                       at::Device device) {
  const at::Tensor kinds = kinds_of_scores(mask, b, h, q, device);
  const IndexRange kv{0, mask.lengths().kv};
  const at::Tensor kept = evaluate_mask(mask.mask_fn(), TileIndices({b, h, q, kv}, device));
  return kinds.eq(static_cast<int64_t>(BlockKind::kPartial))
      .logical_and(kept)
      .logical_or(kinds.eq(static_cast<int64_t>(BlockKind::kFull)));
}

KeptKeys find_kept_keys(const BlockMask& mask, at::Device device) {
  const auto [batch, heads, q_len, kv_len] = mask.shape();
  KeptKeys found{batch, heads, q_len, kv_len, {}, true};
  found.ranges.reserve(static_cast<std::size_t>(batch * heads * q_len));
  const at::Tensor position = at::arange(kv_len, at::TensorOptions(at::kInt).device(device));
  const at::Tensor after = position.add(1);
  for_each_part(mask, 1, device,
                [&](int64_t, int64_t, const IndexRange& rows, const at::Tensor& kept) {
                  const at::Tensor host =
                      at::stack({at::where(kept, position, found.kv_len).amin(-1).to(at::kLong),
                                 at::where(kept, after, 0).amax(-1).to(at::kLong), kept.sum(-1)})
                          .cpu()
                          .view({3, rows.size()});
                  const auto at = host.accessor<int64_t, 2>();
                  for (int64_t i = 0; i < rows.size(); ++i) {
                    const bool some = at[2][i] > 0;
                    const IndexRange range = some ? IndexRange{at[0][i], at[1][i]} : IndexRange{};
                    found.without_gaps = found.without_gaps && range.size() == at[2][i];
                    found.ranges.push_back(range);
                  }
                });
  return found;
}

}  // namespace stagecraft::detail
