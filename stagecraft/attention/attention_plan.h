#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "stagecraft/attention/block_mask.h"
#include "stagecraft/attention/evaluate_mask.h"

namespace stagecraft::detail {

/// The parameters of one call of flex_attention, apart from the tensors.
struct AttentionProblem : torch::CustomClassHolder {
  int64_t batch = 0;
  int64_t kv_heads = 0;
  /// Query heads for each head of key and value.
  int64_t group = 1;
  int64_t q_len = 0;
  int64_t kv_len = 0;
  double scale = 1;
  /// May be null.
  c10::intrusive_ptr<BlockMask> mask;

  int64_t heads() const { return kv_heads * group; }
};

/// Neighbouring kept keys of one kind.
struct KvRun {
  IndexRange kv;
  /// Where the run starts among the kept keys of its row.
  int64_t offset = 0;
  BlockKind kind = BlockKind::kFull;

  friend bool operator==(const KvRun&, const KvRun&) = default;
};

/// Queries that are computed together: all keep the same blocks of keys.
struct RowPiece {
  IndexRange q;
  /// In ascending order. Empty if nothing is kept.
  std::vector<KvRun> runs;
  /// How many keys are kept.
  int64_t width = 0;
  /// The kept keys as int64 on the device; undefined if they have no gaps.
  at::Tensor columns;
};

/// Members of the batch and query heads that share their blocks.
struct PlanSlot {
  IndexRange b;
  IndexRange h;
  std::vector<RowPiece> pieces;
};

/// How large a piece may become.
struct PieceLimit {
  /// The most scores of a piece that exist at the same time. A piece has at least kMinPieceRows
  /// queries, even if they have more scores.
  int64_t scores = 0;
  /// Whether a piece is computed for all members and heads of a slot at the same time, or for one
  /// kv head.
  bool whole_slot = false;
};

constexpr int64_t kMinPieceRows = 16;

/// The slots cover every (member, head) once, their pieces every query once.
///
///   mask rows      pieces (causal, one slot)
///   ░···           q [0, 128)    runs partial [0, 128)
///   █░··           q [128, 256)  runs full [0, 128), partial [128, 256)
///   ...
std::vector<PlanSlot> plan_rows(const AttentionProblem& problem, const PieceLimit& limit,
                                at::Device device);

}  // namespace stagecraft::detail
