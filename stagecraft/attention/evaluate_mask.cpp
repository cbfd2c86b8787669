#include "stagecraft/attention/evaluate_mask.h"

#include <array>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "stagecraft/base/check.h"
#include "stagecraft/tree/tensor_meta.h"

namespace stagecraft::detail {
namespace {

at::Tensor indices_along(int64_t dim, const IndexRange& range, at::Device device) {
  std::array<int64_t, 4> shape = {1, 1, 1, 1};
  shape[static_cast<std::size_t>(dim)] = range.size();
  return at::arange(range.begin, range.end, at::TensorOptions(at::kLong).device(device))
      .view(shape);
}

}  // namespace

TileIndices::TileIndices(const ScoreTile& tile, at::Device device)
    : b(indices_along(0, tile.b, device)),
      h(indices_along(1, tile.h, device)),
      q(indices_along(2, tile.q, device)),
      kv(indices_along(3, tile.kv, device)) {}

at::Tensor evaluate_mask(const MaskFn& mask_fn, const TileIndices& at) {
  const at::NoGradGuard no_grad;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const at::Tensor kept = mask_fn(at.b, at.h, at.q, at.kv);
  const std::array<int64_t, 4> sizes = {at.b.size(0), at.h.size(1), at.q.size(2), at.kv.size(3)};
  if (!kept.defined() || kept.scalar_type() != at::kBool) {
    throw ArgumentError(
        fmt::format("the mask function must return a bool tensor, got {}", describe(kept)));
  }
  bool fits = kept.dim() <= 4;
  std::array<int64_t, 4> shape = {1, 1, 1, 1};
  for (int64_t i = 0; fits && i < kept.dim(); ++i) {
    const auto dim = static_cast<std::size_t>(4 - kept.dim() + i);
    shape[dim] = kept.size(i);
    fits = shape[dim] == 1 || shape[dim] == sizes[dim];
  }
  if (!fits) {
    throw ArgumentError(
        fmt::format("the mask function returned {}, which does not broadcast to [{}] ([batch, "
                    "heads, queries, keys])",
                    describe(kept), fmt::join(sizes, ", ")));
  }
  if (kept.device() != at.q.device()) {
    throw ArgumentError(fmt::format("the mask function returned a tensor on {} for indices on {}",
                                    kept.device().str(), at.q.device().str()));
  }
  return kept.view(shape);
}

}  // namespace stagecraft::detail
