#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "stagecraft/attention/mask_fns.h"

namespace stagecraft::detail {

/// A half-open range of indices.
struct IndexRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }

  friend bool operator==(const IndexRange&, const IndexRange&) = default;
};

/// The part of `x` whose indices along `dim` are in the range; it shares its memory.
inline at::Tensor narrow(const at::Tensor& x, int64_t dim, const IndexRange& range) {
  return x.narrow(dim, range.begin, range.size());
}

/// A box of the score tensor [batch, heads, queries, keys].
struct ScoreTile {
  IndexRange b;
  IndexRange h;
  IndexRange q;
  IndexRange kv;
};

/// The index tensors that a mask function gets for a tile.
struct TileIndices {
  TileIndices(const ScoreTile& tile, at::Device device);

  at::Tensor b;
  at::Tensor h;
  at::Tensor q;
  at::Tensor kv;
};

/// Calls `mask_fn` without recording gradients and without autocast. The result is bool and has
/// four sizes, each 1 or the tile's; anything else that the function returns is an ArgumentError.
at::Tensor evaluate_mask(const MaskFn& mask_fn, const TileIndices& at);

}  // namespace stagecraft::detail
