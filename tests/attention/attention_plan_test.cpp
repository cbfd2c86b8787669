#include "stagecraft/attention/attention_plan.h"

#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>

#include "stagecraft/attention/create_block_mask.h"

namespace stagecraft::detail {
namespace {

constexpr int64_t kPlenty = int64_t{1} << 30;

/// "b 0-2 h 0-4: q 0-4 P0-4; q 4-8 F0-4 P4-8": runs of partial (P) and full (F) blocks.
std::string text(const std::vector<PlanSlot>& slots) {
  std::string out;
  for (const PlanSlot& slot : slots) {
    out += fmt::format("b {}-{} h {}-{}:", slot.b.begin, slot.b.end, slot.h.begin, slot.h.end);
    for (const RowPiece& piece : slot.pieces) {
      out += fmt::format(" q {}-{}", piece.q.begin, piece.q.end);
      for (const KvRun& run : piece.runs) {
        out += fmt::format(" {}{}-{}", run.kind == BlockKind::kFull ? "F" : "P", run.kv.begin,
                           run.kv.end);
      }
      out += ";";
    }
    out += "\n";
  }
  return out;
}

AttentionProblem problem(c10::intrusive_ptr<BlockMask> mask, int64_t batch, int64_t kv_heads,
                         int64_t group, int64_t q_len, int64_t kv_len) {
  AttentionProblem result;
  result.batch = batch;
  result.kv_heads = kv_heads;
  result.group = group;
  result.q_len = q_len;
  result.kv_len = kv_len;
  result.mask = std::move(mask);
  return result;
}

TEST(AttentionPlan, CausalRowsGrow) {
  const auto mask = create_block_mask(causal_mask(), 1, 1, 10, 10, 4);
  EXPECT_EQ(text(plan_rows(problem(mask, 2, 2, 2, 10, 10), {kPlenty}, at::kCPU)),
            "b 0-2 h 0-4: q 0-4 P0-4; q 4-8 F0-4 P4-8; q 8-10 P0-10;\n");
}

TEST(AttentionPlan, WithoutAMaskThereIsOneFullRun) {
  EXPECT_EQ(text(plan_rows(problem({}, 1, 1, 1, 40, 9), {kPlenty}, at::kCPU)),
            "b 0-1 h 0-1: q 0-40 F0-9;\n");
  EXPECT_EQ(text(plan_rows(problem({}, 1, 1, 1, 40, 0), {kPlenty}, at::kCPU)),
            "b 0-1 h 0-1: q 0-40;\n");
}

TEST(AttentionPlan, EqualRowsAreMerged) {
  const at::Tensor ids = at::tensor({0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1}, at::kLong);
  const auto mask = create_block_mask(document_mask(ids), 1, 1, 12, 12, 2);
  EXPECT_EQ(text(plan_rows(problem(mask, 1, 1, 1, 12, 12), {kPlenty}, at::kCPU)),
            "b 0-1 h 0-1: q 0-8 F0-8; q 8-12 F8-12;\n");
}

TEST(AttentionPlan, LargeRowsAreCut) {
  // 96 rows of 100 scores; 4000 scores at a time are 40 rows, three pieces of 32.
  EXPECT_EQ(text(plan_rows(problem({}, 1, 1, 1, 96, 100), {4000}, at::kCPU)),
            "b 0-1 h 0-1: q 0-32 F0-100; q 32-64 F0-100; q 64-96 F0-100;\n");
  // The group counts, and the whole slot where all of it is computed at a time.
  EXPECT_EQ(plan_rows(problem({}, 1, 1, 2, 96, 100), {4000}, at::kCPU)[0].pieces.size(), 5u);
  EXPECT_EQ(plan_rows(problem({}, 2, 1, 1, 96, 100), {4000}, at::kCPU)[0].pieces.size(), 3u);
  EXPECT_EQ(plan_rows(problem({}, 2, 1, 1, 96, 100), {4000, true}, at::kCPU)[0].pieces.size(), 5u);
  // Never below the least number of rows.
  EXPECT_EQ(plan_rows(problem({}, 1, 1, 1, 96, 100), {1}, at::kCPU)[0].pieces.size(),
            static_cast<std::size_t>(96 / kMinPieceRows));
}

TEST(AttentionPlan, MasksThatDifferHaveASlotEach) {
  const MaskFn shifted = [](const at::Tensor& b, const at::Tensor& h, const at::Tensor& q,
                            const at::Tensor& kv) {
    return q.div(4, "floor").eq(kv.div(4, "floor").add(b).add(h));
  };
  const auto both = create_block_mask(shifted, 2, 2, 8, 8, 4);
  EXPECT_EQ(text(plan_rows(problem(both, 2, 1, 2, 8, 8), {kPlenty}, at::kCPU)),
            "b 0-1 h 0-1: q 0-4 F0-4; q 4-8 F4-8;\n"
            "b 0-1 h 1-2: q 0-4; q 4-8 F0-4;\n"
            "b 1-2 h 0-1: q 0-4; q 4-8 F0-4;\n"
            "b 1-2 h 1-2: q 0-8;\n");
  const auto by_head = create_block_mask(shifted, 1, 2, 8, 8, 4);
  EXPECT_EQ(text(plan_rows(problem(by_head, 3, 2, 1, 8, 8), {kPlenty}, at::kCPU)),
            "b 0-3 h 0-1: q 0-4 F0-4; q 4-8 F4-8;\n"
            "b 0-3 h 1-2: q 0-4; q 4-8 F0-4;\n");
}

TEST(AttentionPlan, GapsAreListed) {
  const MaskFn ends = [](const at::Tensor&, const at::Tensor&, const at::Tensor&,
                         const at::Tensor& kv) { return kv.lt(2).logical_or(kv.ge(5)); };
  const auto mask = create_block_mask(ends, 1, 1, 4, 6, 2);
  const auto slots = plan_rows(problem(mask, 1, 1, 1, 4, 6), {kPlenty}, at::kCPU);
  EXPECT_EQ(text(slots), "b 0-1 h 0-1: q 0-4 F0-2 P4-6;\n");
  const RowPiece& piece = slots[0].pieces[0];
  EXPECT_EQ(piece.width, 4);
  EXPECT_EQ(piece.runs[1].offset, 2);
  EXPECT_TRUE(at::equal(piece.columns, at::tensor({0, 1, 4, 5}, at::kLong)));
}

TEST(AttentionPlan, NeighboursNeedNoList) {
  const auto mask = create_block_mask(sliding_window_mask(3), 1, 1, 12, 12, 4);
  const auto slots = plan_rows(problem(mask, 1, 1, 1, 12, 12), {kPlenty}, at::kCPU);
  for (const RowPiece& piece : slots[0].pieces) {
    EXPECT_FALSE(piece.columns.defined());
  }
}

}  // namespace
}  // namespace stagecraft::detail
