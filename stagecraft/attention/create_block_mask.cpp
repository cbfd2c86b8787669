#include "stagecraft/attention/create_block_mask.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/add.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include "stagecraft/attention/block_lists.h"
#include "stagecraft/attention/evaluate_mask.h"
#include "stagecraft/base/check.h"

namespace stagecraft {
namespace {

using detail::blocks_in;
using detail::IndexRange;
using detail::ScoreTile;

/// The most elements of the dense mask that exist at the same time.
constexpr int64_t kMaxTileElements = int64_t{1} << 24;

void check_sizes(const MaskFn& mask_fn, int64_t batch, int64_t heads, int64_t q_len,
                 int64_t kv_len) {
  require<ArgumentError>(mask_fn != nullptr, "a mask needs a mask function, got an empty one");
  require<ArgumentError>(batch >= 0 && heads >= 0 && q_len >= 0 && kv_len >= 0,
                         "the sizes of a mask must not be negative, got batch {}, heads {}, {} "
                         "queries and {} keys",
                         batch, heads, q_len, kv_len);
}

/// How many kept elements each block of the tile has: [1 or b, 1 or h, rows, columns].
at::Tensor count_kept(const MaskFn& mask_fn, const ScoreTile& tile, const BlockSize& block,
                      at::Device device) {
  at::Tensor kept = detail::evaluate_mask(mask_fn, detail::TileIndices(tile, device));
  const int64_t b = kept.size(0);
  const int64_t h = kept.size(1);
  kept = kept.expand({b, h, tile.q.size(), tile.kv.size()});
  const int64_t rows = blocks_in(tile.q.size(), block.q);
  const int64_t columns = blocks_in(tile.kv.size(), block.kv);
  const int64_t q_pad = rows * block.q - tile.q.size();
  const int64_t kv_pad = columns * block.kv - tile.kv.size();
  if (q_pad > 0 || kv_pad > 0) kept = at::constant_pad_nd(kept, {0, kv_pad, 0, q_pad}, false);
  return kept.reshape({b, h, rows, block.q, columns, block.kv}).sum({3, 5}, false, at::kInt);
}

/// The same for a tile of one block. The block may have more than kMaxTileElements elements.
at::Tensor count_kept_in_parts(const MaskFn& mask_fn, const ScoreTile& tile, at::Device device) {
  const int64_t kv_step = std::min(tile.kv.size(), kMaxTileElements);
  const int64_t q_step = std::min(tile.q.size(), kMaxTileElements / kv_step);
  at::Tensor total = at::zeros({1, 1, 1, 1}, at::TensorOptions(at::kLong).device(device));
  for (int64_t q = tile.q.begin; q < tile.q.end; q += q_step) {
    for (int64_t kv = tile.kv.begin; kv < tile.kv.end; kv += kv_step) {
      const ScoreTile part{tile.b,
                           tile.h,
                           {q, std::min(q + q_step, tile.q.end)},
                           {kv, std::min(kv + kv_step, tile.kv.end)}};
      total = total.add(count_kept(mask_fn, part, {part.q.size(), part.kv.size()}, device));
    }
  }
  return total;
}

/// Sorts the blocks of a tile by how many elements they keep.
class GridFiller {
 public:
  GridFiller(BlockGrid& grid, BlockSize block, MaskLengths lengths)
      : grid_(grid),
        whole_rows_(lengths.q / block.q),
        whole_columns_(lengths.kv / block.kv),
        full_count_(std::min(block.q, lengths.q) * std::min(block.kv, lengths.kv)) {}

  void fill(const at::Tensor& counts, const IndexRange& b, const IndexRange& h, int64_t row,
            int64_t column) {
    const at::Tensor host =
        counts.to(at::kLong).expand({b.size(), h.size(), counts.size(2), counts.size(3)}).cpu();
    const auto n = host.accessor<int64_t, 4>();
    for (int64_t i = 0; i < n.size(0); ++i) {
      for (int64_t j = 0; j < n.size(1); ++j) {
        for (int64_t r = 0; r < n.size(2); ++r) {
          for (int64_t c = 0; c < n.size(3); ++c) {
            grid_.at(b.begin + i, h.begin + j, row + r, column + c) =
                kind(n[i][j][r][c], row + r, column + c);
          }
        }
      }
    }
  }

 private:
  BlockKind kind(int64_t count, int64_t row, int64_t column) const {
    if (count == 0) return BlockKind::kEmpty;
    const bool within = row < whole_rows_ && column < whole_columns_;
    return within && count == full_count_ ? BlockKind::kFull : BlockKind::kPartial;
  }

  BlockGrid& grid_;
  int64_t whole_rows_;
  int64_t whole_columns_;
  int64_t full_count_;
};

/// How many of `size` items fit into `room` elements if each takes `cost`. At least one.
int64_t fit(int64_t size, int64_t cost, int64_t room) {
  return std::clamp<int64_t>(room / std::max<int64_t>(cost, 1), 1, std::max<int64_t>(size, 1));
}

void fill_grid(BlockGrid& grid, const MaskFn& mask_fn, const BlockSize& block_size,
               const MaskLengths& lengths, at::Device device) {
  GridFiller filler(grid, block_size, lengths);
  // The part of a block beyond the lengths is not evaluated, however large the blocks are.
  const BlockSize block{std::min(block_size.q, lengths.q), std::min(block_size.kv, lengths.kv)};
  const bool in_parts = block.q > kMaxTileElements / block.kv;

  int64_t cost = in_parts ? kMaxTileElements : block.q * block.kv;
  const int64_t columns = fit(grid.columns(), cost, kMaxTileElements);
  cost *= columns;
  const int64_t rows = fit(grid.rows(), cost, kMaxTileElements);
  cost *= rows;
  const int64_t heads = fit(grid.heads(), cost, kMaxTileElements);
  cost *= heads;
  const int64_t batch = fit(grid.batch(), cost, kMaxTileElements);

  for (int64_t b = 0; b < grid.batch(); b += batch) {
    for (int64_t h = 0; h < grid.heads(); h += heads) {
      for (int64_t row = 0; row < grid.rows(); row += rows) {
        for (int64_t column = 0; column < grid.columns(); column += columns) {
          const ScoreTile tile{
              {b, std::min(b + batch, grid.batch())},
              {h, std::min(h + heads, grid.heads())},
              {row * block.q, std::min((row + rows) * block.q, lengths.q)},
              {column * block.kv, std::min((column + columns) * block.kv, lengths.kv)}};
          filler.fill(in_parts ? count_kept_in_parts(mask_fn, tile, device)
                               : count_kept(mask_fn, tile, block, device),
                      tile.b, tile.h, row, column);
        }
      }
    }
  }
}

}  // namespace

c10::intrusive_ptr<BlockMask> create_block_mask(MaskFn mask_fn, int64_t batch, int64_t heads,
                                                int64_t q_len, int64_t kv_len, BlockSize block_size,
                                                at::Device device) {
  check_sizes(mask_fn, batch, heads, q_len, kv_len);
  require<ArgumentError>(block_size.q > 0 && block_size.kv > 0,
                         "block sizes must be positive, got {}x{}", block_size.q, block_size.kv);
  BlockGrid grid(batch, heads, blocks_in(q_len, block_size.q), blocks_in(kv_len, block_size.kv));
  if (!grid.kinds().empty()) {
    fill_grid(grid, mask_fn, block_size, {q_len, kv_len}, device);
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
