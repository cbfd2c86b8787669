#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/attention/block_grid.h"
#include "stagecraft/attention/mask_fns.h"
#include "stagecraft/tree/opaque.h"

namespace stagecraft {

namespace detail {
class MaskPlans;
}  // namespace detail

/// How many queries and keys one block spans.
struct BlockSize {
  constexpr BlockSize() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): one number means square blocks.
  constexpr BlockSize(int64_t side) : q(side), kv(side) {}
  constexpr BlockSize(int64_t q_size, int64_t kv_size) : q(q_size), kv(kv_size) {}

  friend constexpr bool operator==(const BlockSize&, const BlockSize&) = default;

  int64_t q = 128;
  int64_t kv = 128;
};

/// The number of queries and keys.
struct MaskLengths {
  friend constexpr bool operator==(const MaskLengths&, const MaskLengths&) = default;

  int64_t q = 0;
  int64_t kv = 0;
};

/// For each row of blocks, the columns to visit: the first num_blocks entries of the row's indices.
/// int32, [batch, heads, rows] and [batch, heads, rows, columns].
struct BlockList {
  at::Tensor num_blocks;
  at::Tensor indices;
};

/// A mask over attention scores [batch, heads, q_len, kv_len]. It lists for each block whether
/// there is anything to compute. Batch or heads of 1 stand for any number of them.
///
/// The blocks are listed as torch.nn.attention.flex_attention.BlockMask lists them. A row of blocks
/// is q_block queries, a column kv_block keys; for each row,
///
///   kv_num_blocks  [batch, heads, rows]            how many partial blocks the row has
///   kv_indices     [batch, heads, rows, columns]   their columns first; the rest is not used
///
/// in int32; full_kv_* list the full blocks the same way, q_* and full_q_* are the same for
/// columns. The last row and column may reach beyond the lengths.
///
/// Immutable and safe to share between threads; do not write to the tensors. A leaf of a tree: see
/// make_opaque. Make one with create_block_mask or from_kv_blocks.
class BlockMask final : public Opaque {
  struct Parts;

 public:
  /// Takes the lists as they are and derives the transposed ones. Without `full_kv_*` no block is
  /// full. Passing only one of the two is an error. Without `mask_fn` partial blocks are kept
  /// whole. Without `lengths` the lengths are those of all blocks. Waits for the device that holds
  /// the lists. Throws ArgumentError for lists that contradict themselves, each other or the
  /// lengths.
  static c10::intrusive_ptr<BlockMask> from_kv_blocks(
      at::Tensor kv_num_blocks, at::Tensor kv_indices, at::Tensor full_kv_num_blocks = {},
      at::Tensor full_kv_indices = {}, BlockSize block_size = {}, MaskFn mask_fn = {},
      std::optional<MaskLengths> lengths = {});

  /// Lists the blocks of `grid` on `device`, full ones too. Throws ArgumentError if the lengths do
  /// not have that many blocks.
  static c10::intrusive_ptr<BlockMask> from_grid(BlockGrid grid, BlockSize block_size,
                                                 MaskFn mask_fn, MaskLengths lengths,
                                                 at::Device device);

  /// For the factories above.
  explicit BlockMask(Parts parts);

  const at::Tensor& kv_num_blocks() const { return parts_.kv.num_blocks; }
  const at::Tensor& kv_indices() const { return parts_.kv.indices; }
  const at::Tensor& q_num_blocks() const { return parts_.q.num_blocks; }
  const at::Tensor& q_indices() const { return parts_.q.indices; }

  /// Whether full blocks are listed; if not, the next four are undefined tensors.
  bool has_full_blocks() const { return parts_.full_kv.indices.defined(); }
  const at::Tensor& full_kv_num_blocks() const { return parts_.full_kv.num_blocks; }
  const at::Tensor& full_kv_indices() const { return parts_.full_kv.indices; }
  const at::Tensor& full_q_num_blocks() const { return parts_.full_q.num_blocks; }
  const at::Tensor& full_q_indices() const { return parts_.full_q.indices; }

  BlockSize block_size() const { return parts_.block_size; }
  MaskLengths lengths() const { return parts_.lengths; }
  const MaskFn& mask_fn() const { return parts_.mask_fn; }
  at::Device device() const { return parts_.kv.indices.device(); }

  /// [batch, heads, q_len, kv_len].
  std::array<int64_t, 4> shape() const;

  /// The kind of every block, on the host.
  const BlockGrid& grid() const { return parts_.grid; }

  /// The plans that attention has made for this mask. For this library only.
  detail::MaskPlans& plans() const { return *plans_; }

  /// int32 [batch, heads, rows, columns]: 1 for every block that is kept, in part or in full.
  at::Tensor to_dense() const;

  /// The percentage of blocks that are not computed. A block that reaches beyond the lengths counts
  /// like the others. 0 for an empty matrix. torch computes the same since 2.15; up to 2.13 it
  /// divides by elements, which can give less than 0.
  double sparsity() const;

  /// The same mask with its lists on `device`. What the mask function captured stays where it is.
  c10::intrusive_ptr<BlockMask> to(at::Device device) const;

  /// The members [begin, begin + size) of the batch, with `mask_fn` for them. The lists are views
  /// of this mask's lists. Throws ArgumentError if the mask has fewer members.
  c10::intrusive_ptr<BlockMask> narrow_batch(int64_t begin, int64_t size, MaskFn mask_fn) const;

  /// "BlockMask[2, 1, 512, 512] blocks 128x128 sparsity 46.9%".
  std::string describe() const override;

  /// The batch; any number of chunks if the batch is 1.
  std::optional<int64_t> max_chunks() const override;
  /// The same chunks as split_block_mask.
  std::vector<c10::intrusive_ptr<Opaque>> split(int64_t chunks) const override;

 private:
  struct Parts {
    BlockGrid grid;
    BlockList kv;
    BlockList full_kv;
    BlockList q;
    BlockList full_q;
    BlockSize block_size;
    MaskLengths lengths;
    MaskFn mask_fn;
  };

  Parts parts_;
  std::shared_ptr<detail::MaskPlans> plans_;
};

}  // namespace stagecraft
