#include "stagecraft/attention/attention_plan.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>

namespace stagecraft::detail {
namespace {

std::vector<KvRun> runs_of_row(const BlockMask& mask, int64_t b, int64_t h, int64_t row) {
  const BlockGrid& grid = mask.grid();
  const int64_t block = mask.block_size().kv;
  std::vector<KvRun> runs;
  int64_t offset = 0;
  for (int64_t column = 0; column < grid.columns(); ++column) {
    const BlockKind kind = grid.at(b, h, row, column);
    if (kind == BlockKind::kEmpty) continue;
    const IndexRange kv{column * block, std::min((column + 1) * block, mask.lengths().kv)};
    if (!runs.empty() && runs.back().kind == kind && runs.back().kv.end == kv.begin) {
      runs.back().kv.end = kv.end;
    } else {
      runs.push_back({kv, offset, kind});
    }
    offset += kv.size();
  }
  return runs;
}

int64_t width_of(const std::vector<KvRun>& runs) {
  return runs.empty() ? 0 : runs.back().offset + runs.back().kv.size();
}

bool has_gaps(const std::vector<KvRun>& runs) {
  return !runs.empty() && runs.back().kv.end - runs.front().kv.begin != width_of(runs);
}

/// Cuts `q` into pieces of about equal size within the limit.
void add_pieces(PlanSlot& slot, IndexRange q, const std::vector<KvRun>& runs, int64_t at_once,
                int64_t max_scores) {
  if (q.size() == 0) return;
  const int64_t width = width_of(runs);
  const int64_t row_cost = std::max<int64_t>(1, at_once * width);
  const int64_t most = std::max(kMinPieceRows, max_scores / row_cost);
  const int64_t count = (q.size() + most - 1) / most;
  for (int64_t i = 0; i < count; ++i) {
    slot.pieces.push_back(
        {{q.begin + q.size() * i / count, q.begin + q.size() * (i + 1) / count}, runs, width, {}});
  }
}

/// One copy to the device for all pieces that need their columns listed.
void list_columns(std::vector<PlanSlot>& slots, at::Device device) {
  int64_t total = 0;
  for (const PlanSlot& slot : slots) {
    for (const RowPiece& piece : slot.pieces) total += has_gaps(piece.runs) ? piece.width : 0;
  }
  if (total == 0) return;
  at::Tensor all = at::empty({total}, at::kLong);
  auto* out = all.mutable_data_ptr<int64_t>();
  for (const PlanSlot& slot : slots) {
    for (const RowPiece& piece : slot.pieces) {
      if (!has_gaps(piece.runs)) continue;
      for (const KvRun& run : piece.runs) {
        for (int64_t kv = run.kv.begin; kv < run.kv.end; ++kv) *out++ = kv;
      }
    }
  }
  all = all.to(device);
  int64_t begin = 0;
  for (PlanSlot& slot : slots) {
    for (RowPiece& piece : slot.pieces) {
      if (!has_gaps(piece.runs)) continue;
      piece.columns = all.narrow(0, begin, piece.width);
      begin += piece.width;
    }
  }
}

}  // namespace

std::vector<PlanSlot> plan_rows(const AttentionProblem& problem, const PieceLimit& limit,
                                at::Device device) {
  const int64_t mask_batch = problem.mask ? problem.mask->grid().batch() : 1;
  const int64_t mask_heads = problem.mask ? problem.mask->grid().heads() : 1;
  std::vector<PlanSlot> slots;
  for (int64_t b = 0; b < mask_batch; ++b) {
    for (int64_t h = 0; h < mask_heads; ++h) {
      PlanSlot slot;
      slot.b = mask_batch == 1 ? IndexRange{0, problem.batch} : IndexRange{b, b + 1};
      slot.h = mask_heads == 1 ? IndexRange{0, problem.heads()} : IndexRange{h, h + 1};
      const int64_t at_once =
          limit.whole_slot ? slot.b.size() * slot.h.size() : std::min(problem.group, slot.h.size());
      if (!problem.mask) {
        std::vector<KvRun> all;
        if (problem.kv_len > 0) all.push_back({{0, problem.kv_len}, 0, BlockKind::kFull});
        add_pieces(slot, {0, problem.q_len}, all, at_once, limit.scores);
      } else {
        const int64_t block = problem.mask->block_size().q;
        IndexRange q;
        std::vector<KvRun> runs;
        for (int64_t row = 0; row < problem.mask->grid().rows(); ++row) {
          std::vector<KvRun> next = runs_of_row(*problem.mask, b, h, row);
          if (next != runs) {
            add_pieces(slot, q, runs, at_once, limit.scores);
            q.begin = q.end;
            runs = std::move(next);
          }
          q.end = std::min((row + 1) * block, problem.q_len);
        }
        add_pieces(slot, q, runs, at_once, limit.scores);
      }
      slots.push_back(std::move(slot));
    }
  }
  list_columns(slots, device);
  return slots;
}

}  // namespace stagecraft::detail
