#include "stagecraft/attention/create_block_mask.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/sum.h>

#include "stagecraft/attention/evaluate_mask.h"
#include "stagecraft/base/check.h"

namespace stagecraft {
namespace {

using detail::IndexRange;
using detail::ScoreTile;

/// The most elements of the dense mask that exist at a time.
constexpr int64_t kMaxTileElements = int64_t{1} << 24;

void check_sizes(const MaskFn& mask_fn, int64_t batch, int64_t heads, int64_t q_len,
                 int64_t kv_len) {
  require<ArgumentError>(mask_fn != nullptr, "a mask needs a mask function, got an empty one");
  require<ArgumentError>(batch >= 0 && heads >= 0 && q_len >= 0 && kv_len >= 0,
                         "the sizes of a mask must not be negative, got batch {}, heads {}, {} "
                         "queries and {} keys",
                         batch, heads, q_len, kv_len);
}

/// How many kept elements each block of the tile has, as int32 [1 or b, 1 or h, rows, columns].
at::Tensor count_kept(const MaskFn& mask_fn, const ScoreTile& tile, const BlockSize& block,
                      at::Device device) {
  at::Tensor kept = detail::evaluate_mask(mask_fn, detail::TileIndices(tile, device));
  const int64_t b = kept.size(0);
  const int64_t h = kept.size(1);
  kept = kept.expand({b, h, tile.q.size(), tile.kv.size()});
  const int64_t rows = (tile.q.size() + block.q - 1) / block.q;
  const int64_t columns = (tile.kv.size() + block.kv - 1) / block.kv;
  const int64_t q_pad = rows * block.q - tile.q.size();
  const int64_t kv_pad = columns * block.kv - tile.kv.size();
  if (q_pad > 0 || kv_pad > 0) kept = at::constant_pad_nd(kept, {0, kv_pad, 0, q_pad}, false);
  return kept.reshape({b, h, rows, block.q, columns, block.kv}).sum({3, 5}, false, at::kInt);
}

void fill(BlockGrid& grid, const at::Tensor& counts, int64_t full_count, const IndexRange& b,
          const IndexRange& h, int64_t row, int64_t column) {
  const at::Tensor host = counts.expand({b.size(), h.size(), counts.size(2), counts.size(3)}).cpu();
  const auto n = host.accessor<int32_t, 4>();
  for (int64_t i = 0; i < n.size(0); ++i) {
    for (int64_t j = 0; j < n.size(1); ++j) {
      for (int64_t r = 0; r < n.size(2); ++r) {
        for (int64_t c = 0; c < n.size(3); ++c) {
          const int64_t count = n[i][j][r][c];
          grid.at(b.begin + i, h.begin + j, row + r, column + c) = count == 0 ? BlockKind::kEmpty
                                                                   : count == full_count
                                                                       ? BlockKind::kFull
                                                                       : BlockKind::kPartial;
        }
      }
    }
  }
}

/// How many of `size` things fit into `room` elements when each takes `cost`: at least one.
int64_t fit(int64_t size, int64_t cost, int64_t room) {
  return std::clamp<int64_t>(room / std::max<int64_t>(cost, 1), 1, std::max<int64_t>(size, 1));
}

}  // namespace

c10::intrusive_ptr<BlockMask> create_block_mask(MaskFn mask_fn, int64_t batch, int64_t heads,
                                                int64_t q_len, int64_t kv_len, BlockSize block_size,
                                                at::Device device) {
  check_sizes(mask_fn, batch, heads, q_len, kv_len);
  const auto [q_block, kv_block] = block_size;
  require<ArgumentError>(q_block > 0 && kv_block > 0, "block sizes must be positive, got {}x{}",
                         q_block, kv_block);
  BlockGrid grid(batch, heads, (q_len + q_block - 1) / q_block, (kv_len + kv_block - 1) / kv_block);

  int64_t cost = q_block * kv_block;
  const int64_t columns = fit(grid.columns(), cost, kMaxTileElements);
  cost *= columns;
  const int64_t rows = fit(grid.rows(), cost, kMaxTileElements);
  cost *= rows;
  const int64_t tile_heads = fit(heads, cost, kMaxTileElements);
  cost *= tile_heads;
  const int64_t tile_batch = fit(batch, cost, kMaxTileElements);

  for (int64_t b = 0; b < batch; b += tile_batch) {
    for (int64_t h = 0; h < heads; h += tile_heads) {
      for (int64_t row = 0; row < grid.rows(); row += rows) {
        for (int64_t column = 0; column < grid.columns(); column += columns) {
          const ScoreTile tile{
              {b, std::min(b + tile_batch, batch)},
              {h, std::min(h + tile_heads, heads)},
              {row * q_block, std::min((row + rows) * q_block, q_len)},
              {column * kv_block, std::min((column + columns) * kv_block, kv_len)}};
          fill(grid, count_kept(mask_fn, tile, block_size, device), q_block * kv_block, tile.b,
               tile.h, row, column);
        }
      }
    }
  }
  return BlockMask::from_grid(std::move(grid), block_size, std::move(mask_fn), {q_len, kv_len},
                              device);
}

at::Tensor create_mask(const MaskFn& mask_fn, int64_t batch, int64_t heads, int64_t q_len,
                       int64_t kv_len, at::Device device) {
  check_sizes(mask_fn, batch, heads, q_len, kv_len);
  const ScoreTile tile{{0, batch}, {0, heads}, {0, q_len}, {0, kv_len}};
  return detail::evaluate_mask(mask_fn, detail::TileIndices(tile, device))
      .expand({batch, heads, q_len, kv_len})
      .contiguous();
}

}  // namespace stagecraft
