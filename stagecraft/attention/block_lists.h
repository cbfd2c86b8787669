#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "stagecraft/attention/block_grid.h"
#include "stagecraft/attention/block_mask.h"

namespace stagecraft::detail {

/// How many blocks a length has; the last may reach beyond it.
constexpr int64_t blocks_in(int64_t length, int64_t block) {
  return length / block + (length % block == 0 ? 0 : 1);
}

/// The blocks of one kind: in every row the columns of that kind in ascending order, then all
/// others in ascending order. With `transposed`, rows and columns change places.
BlockList list_blocks(const BlockGrid& grid, BlockKind kind, bool transposed, at::Device device);

/// The grid of a pair of lists. `full` may have undefined tensors. Copies the lists to the host.
/// Lists of a wrong dtype or shape, counts and columns out of range, and a block that is listed
/// twice are ArgumentErrors. Entries after the first `num_blocks` are ignored.
BlockGrid read_blocks(const BlockList& partial, const BlockList& full);

}  // namespace stagecraft::detail
