#include "stagecraft/attention/piece_mask.h"

#include <utility>

#include <ATen/ops/any.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/logical_or.h>

namespace stagecraft::detail {

int64_t PieceMask::size() const {
  int64_t total = 0;
  for (const Part& part : parts) total += part.drop.numel();
  return total;
}

PieceMask make_piece_mask(const AttentionProblem& problem, const PlanSlot& slot,
                          const RowPiece& piece, at::Device device) {
  PieceMask mask;
  bool has_full = false;
  at::Tensor alive;
  for (const KvRun& run : piece.runs) {
    if (run.kind == BlockKind::kFull) {
      has_full = true;
      continue;
    }
    const at::Tensor kept = evaluate_mask(problem.mask->mask_fn(),
                                          TileIndices({slot.b, slot.h, piece.q, run.kv}, device));
    mask.parts.push_back({run.offset, run.kv.size(), kept.logical_not()});
    const at::Tensor some = kept.any(-1, /*keepdim=*/true);
    alive = alive.defined() ? alive.logical_or(some) : some;
  }
  if (has_full || !alive.defined()) return mask;

  at::Tensor dead = alive.logical_not();
  // On other devices the question would wait for the device.
  if (device.is_cpu() && !dead.any().item<bool>()) return mask;
  for (PieceMask::Part& part : mask.parts) part.drop = part.drop.logical_and(alive);
  mask.dead = std::move(dead);
  return mask;
}

}  // namespace stagecraft::detail
