#include "stagecraft/attention/block_mask.h"

#include <limits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ops/empty.h>

#include "stagecraft/attention/block_lists.h"
#include "stagecraft/attention/half_plan.h"
#include "stagecraft/base/check.h"

namespace stagecraft {
namespace {

using detail::blocks_in;

void check_block_size(const BlockSize& size) {
  require<ArgumentError>(size.q > 0 && size.kv > 0, "block sizes must be positive, got {}x{}",
                         size.q, size.kv);
}

void check_lengths(const BlockGrid& grid, const BlockSize& block, const MaskLengths& lengths) {
  require<ArgumentError>(lengths.q >= 0 && lengths.kv >= 0,
                         "the lengths of a mask must not be negative, got {} queries and {} keys",
                         lengths.q, lengths.kv);
  require<ArgumentError>(
      blocks_in(lengths.q, block.q) == grid.rows() &&
          blocks_in(lengths.kv, block.kv) == grid.columns(),
      "{} queries and {} keys in blocks of {}x{} make {} rows and {} columns, but {} rows and {} "
      "columns of blocks were given",
      lengths.q, lengths.kv, block.q, block.kv, blocks_in(lengths.q, block.q),
      blocks_in(lengths.kv, block.kv), grid.rows(), grid.columns());
}

int64_t whole_length(int64_t blocks, int64_t block) {
  require<ArgumentError>(blocks == 0 || block <= std::numeric_limits<int64_t>::max() / blocks,
                         "{} blocks of {} exceed the range of int64", blocks, block);
  return blocks * block;
}

BlockList narrow_list(const BlockList& list, int64_t begin, int64_t size) {
  if (!list.indices.defined()) return {};
  return {list.num_blocks.narrow(0, begin, size), list.indices.narrow(0, begin, size)};
}

BlockList move_list(const BlockList& list, at::Device device) {
  if (!list.indices.defined()) return {};
  return {list.num_blocks.to(device), list.indices.to(device)};
}

}  // namespace

BlockMask::BlockMask(Parts parts)
    : parts_(std::move(parts)), plans_(std::make_shared<detail::MaskPlans>()) {}

c10::intrusive_ptr<BlockMask> BlockMask::from_kv_blocks(at::Tensor kv_num_blocks,
                                                        at::Tensor kv_indices,
                                                        at::Tensor full_kv_num_blocks,
                                                        at::Tensor full_kv_indices,
                                                        BlockSize block_size, MaskFn mask_fn,
                                                        std::optional<MaskLengths> lengths) {
  check_block_size(block_size);
  BlockList kv{std::move(kv_num_blocks), std::move(kv_indices)};
  BlockList full_kv{std::move(full_kv_num_blocks), std::move(full_kv_indices)};
  BlockGrid grid = detail::read_blocks(kv, full_kv);
  if (!lengths) {
    lengths = {whole_length(grid.rows(), block_size.q),
               whole_length(grid.columns(), block_size.kv)};
  }
  check_lengths(grid, block_size, *lengths);

  const at::Device device = kv.indices.device();
  BlockList q = detail::list_blocks(grid, BlockKind::kPartial, /*transposed=*/true, device);
  BlockList full_q;
  if (full_kv.indices.defined()) {
    full_q = detail::list_blocks(grid, BlockKind::kFull, /*transposed=*/true, device);
  }
  return c10::make_intrusive<BlockMask>(Parts{std::move(grid), std::move(kv), std::move(full_kv),
                                              std::move(q), std::move(full_q), block_size, *lengths,
                                              mask_fn ? std::move(mask_fn) : no_mask()});
}

c10::intrusive_ptr<BlockMask> BlockMask::from_grid(BlockGrid grid, BlockSize block_size,
                                                   MaskFn mask_fn, MaskLengths lengths,
                                                   at::Device device) {
  check_block_size(block_size);
  check_lengths(grid, block_size, lengths);
  const auto list = [&](BlockKind kind, bool transposed) {
    return detail::list_blocks(grid, kind, transposed, device);
  };
  BlockList kv = list(BlockKind::kPartial, false);
  BlockList full_kv = list(BlockKind::kFull, false);
  BlockList q = list(BlockKind::kPartial, true);
  BlockList full_q = list(BlockKind::kFull, true);
  return c10::make_intrusive<BlockMask>(Parts{std::move(grid), std::move(kv), std::move(full_kv),
                                              std::move(q), std::move(full_q), block_size, lengths,
                                              mask_fn ? std::move(mask_fn) : no_mask()});
}

std::array<int64_t, 4> BlockMask::shape() const {
  return {parts_.grid.batch(), parts_.grid.heads(), parts_.lengths.q, parts_.lengths.kv};
}

at::Tensor BlockMask::to_dense() const {
  const BlockGrid& grid = parts_.grid;
  at::Tensor dense = at::empty({grid.batch(), grid.heads(), grid.rows(), grid.columns()}, at::kInt);
  auto* out = dense.mutable_data_ptr<int32_t>();
  for (BlockKind kind : grid.kinds()) *out++ = kind == BlockKind::kEmpty ? 0 : 1;
  return dense.to(device());
}

double BlockMask::sparsity() const {
  const auto [batch, heads, q_len, kv_len] = shape();
  const auto blocks = [](int64_t length, int64_t size) { return (length + size - 1) / size; };
  const int64_t all =
      batch * heads * blocks(q_len, parts_.block_size.q) * blocks(kv_len, parts_.block_size.kv);
  if (all == 0) return 0;
  return 100 * (1 - static_cast<double>(parts_.grid.kept()) / static_cast<double>(all));
}

c10::intrusive_ptr<BlockMask> BlockMask::to(at::Device device) const {
  Parts parts = parts_;
  parts.kv = move_list(parts_.kv, device);
  parts.full_kv = move_list(parts_.full_kv, device);
  parts.q = move_list(parts_.q, device);
  parts.full_q = move_list(parts_.full_q, device);
  return c10::make_intrusive<BlockMask>(std::move(parts));
}

c10::intrusive_ptr<BlockMask> BlockMask::narrow_batch(int64_t begin, int64_t size,
                                                      MaskFn mask_fn) const {
  return c10::make_intrusive<BlockMask>(
      Parts{parts_.grid.narrow_batch(begin, size), narrow_list(parts_.kv, begin, size),
            narrow_list(parts_.full_kv, begin, size), narrow_list(parts_.q, begin, size),
            narrow_list(parts_.full_q, begin, size), parts_.block_size, parts_.lengths,
            mask_fn ? std::move(mask_fn) : no_mask()});
}

std::string BlockMask::describe() const {
  return fmt::format("BlockMask[{}] blocks {}x{} sparsity {:.1f}%", fmt::join(shape(), ", "),
                     parts_.block_size.q, parts_.block_size.kv, sparsity());
}

}  // namespace stagecraft
