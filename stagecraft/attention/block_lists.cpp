#include "stagecraft/attention/block_lists.h"

#include <ATen/core/TensorAccessor.h>
#include <ATen/ops/empty.h>

#include "stagecraft/base/check.h"
#include "stagecraft/tree/tensor_meta.h"

namespace stagecraft::detail {
namespace {

void check_list(const BlockList& list, const char* count_name, const char* index_name) {
  require<ArgumentError>(list.num_blocks.defined() && list.indices.defined(),
                         "a block mask needs both {} and {}, got {} and {}", count_name, index_name,
                         describe(list.num_blocks), describe(list.indices));
  const auto& counts = list.num_blocks;
  const auto& indices = list.indices;
  require<ArgumentError>(counts.dim() == 3 && counts.scalar_type() == at::kInt,
                         "{} must be int32 of shape [batch, heads, rows], got {}", count_name,
                         describe(counts));
  require<ArgumentError>(indices.dim() == 4 && indices.scalar_type() == at::kInt,
                         "{} must be int32 of shape [batch, heads, rows, columns], got {}",
                         index_name, describe(indices));
  require<ArgumentError>(indices.sizes().slice(0, 3) == counts.sizes(),
                         "{} {} does not fit {} {}: the first three sizes must agree", index_name,
                         describe(indices), count_name, describe(counts));
  require<ArgumentError>(counts.device() == indices.device(),
                         "{} is on {} but {} is on {}: one device was expected", count_name,
                         counts.device().str(), index_name, indices.device().str());
}

void read_list(const BlockList& list, BlockKind kind, const char* name, BlockGrid& grid) {
  const at::Tensor host_counts = list.num_blocks.cpu();
  const at::Tensor host_indices = list.indices.cpu();
  const auto counts = host_counts.accessor<int32_t, 3>();
  const auto indices = host_indices.accessor<int32_t, 4>();
  for (int64_t b = 0; b < grid.batch(); ++b) {
    for (int64_t h = 0; h < grid.heads(); ++h) {
      for (int64_t row = 0; row < grid.rows(); ++row) {
        const int64_t count = counts[b][h][row];
        require<ArgumentError>(count >= 0 && count <= grid.columns(),
                               "{}kv_num_blocks[{}, {}, {}] is {}, expected 0 to {}", name, b, h,
                               row, count, grid.columns());
        for (int64_t i = 0; i < count; ++i) {
          const int64_t column = indices[b][h][row][i];
          require<ArgumentError>(column >= 0 && column < grid.columns(),
                                 "{}kv_indices[{}, {}, {}, {}] is {}, expected 0 to {}", name, b, h,
                                 row, i, column, grid.columns() - 1);
          BlockKind& cell = grid.at(b, h, row, column);
          require<ArgumentError>(cell == BlockKind::kEmpty,
                                 "{}kv_indices[{}, {}, {}, {}] names column {} of this row again",
                                 name, b, h, row, i, column);
          cell = kind;
        }
      }
    }
  }
}

}  // namespace

BlockList list_blocks(const BlockGrid& grid, BlockKind kind, bool transposed, at::Device device) {
  const int64_t rows = transposed ? grid.columns() : grid.rows();
  const int64_t columns = transposed ? grid.rows() : grid.columns();
  BlockList list{at::empty({grid.batch(), grid.heads(), rows}, at::kInt),
                 at::empty({grid.batch(), grid.heads(), rows, columns}, at::kInt)};
  auto counts = list.num_blocks.accessor<int32_t, 3>();
  auto indices = list.indices.accessor<int32_t, 4>();
  for (int64_t b = 0; b < grid.batch(); ++b) {
    for (int64_t h = 0; h < grid.heads(); ++h) {
      for (int64_t row = 0; row < rows; ++row) {
        const auto wanted = [&](int64_t column) {
          return (transposed ? grid.at(b, h, column, row) : grid.at(b, h, row, column)) == kind;
        };
        auto out = indices[b][h][row];
        int64_t n = 0;
        for (int64_t c = 0; c < columns; ++c) {
          if (wanted(c)) out[n++] = static_cast<int32_t>(c);
        }
        counts[b][h][row] = static_cast<int32_t>(n);
        for (int64_t c = 0; c < columns; ++c) {
          if (!wanted(c)) out[n++] = static_cast<int32_t>(c);
        }
      }
    }
  }
  return {list.num_blocks.to(device), list.indices.to(device)};
}

BlockGrid read_blocks(const BlockList& partial, const BlockList& full) {
  check_list(partial, "kv_num_blocks", "kv_indices");
  const at::Tensor& indices = partial.indices;
  BlockGrid grid(indices.size(0), indices.size(1), indices.size(2), indices.size(3));
  read_list(partial, BlockKind::kPartial, "", grid);
  if (full.num_blocks.defined() || full.indices.defined()) {
    check_list(full, "full_kv_num_blocks", "full_kv_indices");
    require<ArgumentError>(full.indices.sizes() == indices.sizes(),
                           "full_kv_indices {} and kv_indices {} must have the same shape",
                           describe(full.indices), describe(indices));
    require<ArgumentError>(
        full.indices.device() == indices.device(),
        "full_kv_indices is on {} but kv_indices is on {}: one device was expected",
        full.indices.device().str(), indices.device().str());
    read_list(full, BlockKind::kFull, "full_", grid);
  }
  return grid;
}

}  // namespace stagecraft::detail
