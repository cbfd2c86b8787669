#include "stagecraft/attention/block_mask_split.h"

#include <limits>

#include <ATen/ops/add.h>

#include "stagecraft/attention/half_plan.h"
#include "stagecraft/base/check.h"

namespace stagecraft {
namespace {

MaskFn shift_batch(const MaskFn& mask_fn, int64_t offset) {
  if (offset == 0) return mask_fn;
  return [mask_fn, offset](const at::Tensor& b, const at::Tensor& h, const at::Tensor& q,
                           const at::Tensor& kv) { return mask_fn(b.add(offset), h, q, kv); };
}

}  // namespace

std::vector<c10::intrusive_ptr<BlockMask>> split_block_mask(
    const c10::intrusive_ptr<BlockMask>& mask, int64_t chunks) {
  require<ArgumentError>(mask.defined(), "split_block_mask: no mask was given");
  require<ArgumentError>(chunks > 0, "split_block_mask: chunks must be positive, got {}", chunks);
  const int64_t batch = mask->grid().batch();
  if (batch == 1) return {static_cast<std::size_t>(chunks), mask};
  if (batch < chunks) {
    throw ArgumentError(
        fmt::format("{} cannot be split into {} chunks: it has only {} members in its batch",
                    mask->describe(), chunks, batch));
  }

  return mask->plans().chunks(chunks, [&] {
    std::vector<c10::intrusive_ptr<BlockMask>> parts;
    parts.reserve(static_cast<std::size_t>(chunks));
    int64_t begin = 0;
    for (int64_t i = 0; i < chunks; ++i) {
      const int64_t size = batch / chunks + (i < batch % chunks ? 1 : 0);
      parts.push_back(mask->narrow_batch(begin, size, shift_batch(mask->mask_fn(), begin)));
      begin += size;
    }
    return parts;
  });
}

std::optional<int64_t> BlockMask::max_chunks() const {
  const int64_t batch = grid().batch();
  return batch == 1 ? std::numeric_limits<int64_t>::max() : batch;
}

std::vector<c10::intrusive_ptr<Opaque>> BlockMask::split(int64_t chunks) const {
  const auto self =
      c10::intrusive_ptr<BlockMask>::reclaim_copy(const_cast<BlockMask*>(this));  // NOLINT
  const auto parts = split_block_mask(self, chunks);
  return {parts.begin(), parts.end()};
}

}  // namespace stagecraft
