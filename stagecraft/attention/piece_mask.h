#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/attention/attention_plan.h"

namespace stagecraft::detail {

/// The masked scores in the partial blocks of a piece. All tensors are bool with four sizes, each 1
/// or that of [members, heads, queries, keys] of the slot and the piece.
struct PieceMask {
  /// One for each run of partial blocks: the scores that are not kept.
  struct Part {
    int64_t offset = 0;
    int64_t width = 0;
    at::Tensor drop;
  };
  std::vector<Part> parts;
  /// Queries that keep nothing, [., ., ., 1]; undefined if it is known that there are none. `drop`
  /// is false for all of their scores, so that a softmax over them is finite. The caller must
  /// replace their results by 0.
  at::Tensor dead;

  /// The number of elements of all `drop` tensors.
  int64_t size() const;
};

/// Calls the mask function for the partial blocks of the piece, and never for others.
PieceMask make_piece_mask(const AttentionProblem& problem, const PlanSlot& slot,
                          const RowPiece& piece, at::Device device);

}  // namespace stagecraft::detail
