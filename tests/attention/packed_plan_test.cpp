#include "stagecraft/attention/packed_plan.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "stagecraft/attention/create_block_mask.h"
#include "tests/attention/reference.h"

namespace stagecraft::detail {
namespace {

/// "causal window 3: 0-2/0-2 2-5/2-5; 0-5/0-5": queries/keys of the segments, a member after the
/// other.
std::string text_of_plan(const std::optional<PackedPlan>& plan) {
  if (!plan) return "none";
  std::string out = plan->causal ? "causal" : "all";
  if (plan->window) out += fmt::format(" window {}", *plan->window);
  out += ":";
  for (const auto& segments : plan->members) {
    for (const PackedSegment& each : segments) {
      out += fmt::format(" {}-{}/{}-{}", each.q.begin, each.q.end, each.kv.begin, each.kv.end);
    }
    out += ";";
  }
  return out;
}

std::string plan_text(const MaskFn& mask_fn, int64_t batch, int64_t heads, int64_t q_len,
                      int64_t kv_len) {
  const auto mask = create_block_mask(mask_fn, batch, heads, q_len, kv_len, 4);
  return text_of_plan(plan_packed(find_kept_keys(*mask, at::kCPU)));
}

/// The scores that a plan keeps for one member.
at::Tensor dense(const PackedPlan& plan, std::size_t member, int64_t q_len, int64_t kv_len) {
  at::Tensor keep = at::zeros({q_len, kv_len}, at::kBool);
  auto at = keep.accessor<bool, 2>();
  for (const PackedSegment& segment : plan.members[member]) {
    const int64_t shift = segment.kv.size() - segment.q.size();
    for (int64_t i = 0; i < segment.q.size(); ++i) {
      for (int64_t j = 0; j < segment.kv.size(); ++j) {
        const bool late = plan.causal && j > i + shift;
        const bool early = plan.window && j < i + shift - *plan.window;
        at[segment.q.begin + i][segment.kv.begin + j] = !late && !early;
      }
    }
  }
  return keep;
}

MaskFn documents_by_id(const std::vector<int64_t>& ids) {
  return document_mask(at::tensor(ids, at::kLong));
}

TEST(PackedPlan, KnowsCausalMasksWhateverTheirFunction) {
  EXPECT_EQ(plan_text(causal_mask(), 1, 1, 9, 9), "causal: 0-9/0-9;");
  const MaskFn own = [](const at::Tensor&, const at::Tensor&, const at::Tensor& q,
                        const at::Tensor& kv) { return kv.sub(q).lt(1); };
  EXPECT_EQ(plan_text(own, 2, 3, 5, 5), "causal: 0-5/0-5; 0-5/0-5;");
  // Keys after the last query are a segment without queries; the diagonal ends at the last key.
  EXPECT_EQ(plan_text(causal_mask(), 1, 1, 5, 9), "causal: 0-5/0-5 5-5/5-9;");
  EXPECT_EQ(plan_text(causal_mask(), 1, 1, 9, 5), "none");
}

TEST(PackedPlan, KnowsDocuments) {
  EXPECT_EQ(plan_text(documents_by_id({0, 0, 7, 7, 7, 2}), 1, 1, 6, 6),
            "all: 0-2/0-2 2-5/2-5 5-6/5-6;");
  EXPECT_EQ(plan_text(and_masks({causal_mask(), documents_by_id({0, 0, 7, 7, 7, 2})}), 1, 1, 6, 6),
            "causal: 0-2/0-2 2-5/2-5 5-6/5-6;");
  EXPECT_EQ(
      plan_text(document_mask(at::tensor({0, 0, 1, 0, 1, 1}, at::kLong).view({2, 3})), 2, 1, 3, 3),
      "all: 0-2/0-2 2-3/2-3; 0-1/0-1 1-3/1-3;");
  // The first document comes back: its keys have a gap.
  EXPECT_EQ(plan_text(documents_by_id({0, 0, 1, 1, 0}), 1, 1, 5, 5), "none");
}

TEST(PackedPlan, KnowsWindows) {
  EXPECT_EQ(plan_text(sliding_window_mask(2), 1, 1, 9, 9), "causal window 2: 0-9/0-9;");
  EXPECT_EQ(plan_text(sliding_window_mask(20), 1, 1, 9, 9), "causal: 0-9/0-9;");
  EXPECT_EQ(
      plan_text(and_masks({sliding_window_mask(1), documents_by_id({0, 0, 0, 1, 1})}), 1, 1, 5, 5),
      "causal window 1: 0-3/0-3 3-5/3-5;");
}

TEST(PackedPlan, QueriesAndKeysWithoutAPartnerAreSegments) {
  const MaskFn middle = [](const at::Tensor&, const at::Tensor&, const at::Tensor& q,
                           const at::Tensor& kv) {
    return q.ge(2).logical_and(q.lt(4)).logical_and(kv.ge(1)).logical_and(kv.lt(3));
  };
  EXPECT_EQ(plan_text(middle, 1, 1, 6, 6), "all: 0-2/0-0 2-2/0-1 2-4/1-3 4-6/3-3 6-6/3-6;");
}

TEST(PackedPlan, RefusesOtherMasks) {
  const MaskFn prefix = [](const at::Tensor&, const at::Tensor&, const at::Tensor& q,
                           const at::Tensor& kv) { return kv.lt(2).logical_or(kv.le(q)); };
  EXPECT_EQ(plan_text(prefix, 1, 1, 6, 6), "none");
  const MaskFn by_head = [](const at::Tensor&, const at::Tensor& h, const at::Tensor& q,
                            const at::Tensor& kv) { return kv.le(q).logical_and(kv.ge(q.sub(h))); };
  EXPECT_EQ(plan_text(by_head, 1, 3, 6, 6), "none");
}

TEST(PackedPlan, KeepsExactlyWhatTheMaskKeeps) {
  int64_t planned = 0;
  for (uint32_t seed = 0; seed < 400; ++seed) {
    reference::Picks pick(seed);
    const int64_t q_len = pick(1, 12);
    const int64_t kv_len = pick(1, 12);
    // Ranges that jump now and then: many are of the kind, many are nearly.
    at::Tensor keep = at::zeros({1, 1, q_len, kv_len}, at::kBool);
    IndexRange range{0, pick(1, kv_len)};
    const int64_t kind = pick(0, 2);
    for (int64_t q = 0; q < q_len; ++q) {
      keep[0][0][q].narrow(0, range.begin, range.size()).fill_(true);
      if (pick(0, 5) == 0) {
        range.begin = std::min(range.end, kv_len - 1);
        range.end = pick(range.begin, kv_len);
      } else if (kind > 0) {
        range.end = std::min(range.end + 1, kv_len);
        if (kind == 2 && range.size() > 3) ++range.begin;
      }
    }
    const auto mask = create_block_mask(reference::lookup(keep), 1, 1, q_len, kv_len, 3);
    const auto plan = plan_packed(find_kept_keys(*mask, at::kCPU));
    if (!plan) continue;
    ++planned;
    EXPECT_TRUE(at::equal(dense(*plan, 0, q_len, kv_len), keep[0][0])) << "seed " << seed;
    int64_t q = 0;
    int64_t kv = 0;
    for (const PackedSegment& segment : plan->members[0]) {
      EXPECT_EQ(segment.q.begin, q) << "seed " << seed;
      EXPECT_EQ(segment.kv.begin, kv) << "seed " << seed;
      q = segment.q.end;
      kv = segment.kv.end;
    }
    EXPECT_EQ(q, q_len) << "seed " << seed;
    EXPECT_EQ(kv, kv_len) << "seed " << seed;
  }
  EXPECT_GT(planned, 50);
}

TEST(KeptKeys, TheKindsOfBlocksDecideBeforeTheFunction) {
  // Row 0: block 0 is full, block 1 is partial, block 2 is not listed.
  const auto list = [](std::vector<int32_t> values, at::IntArrayRef shape) {
    return at::tensor(values, at::kInt).view(shape);
  };
  const MaskFn even = [](const at::Tensor&, const at::Tensor&, const at::Tensor&,
                         const at::Tensor& kv) { return kv.remainder(2).eq(0); };
  const auto mask = BlockMask::from_kv_blocks(list({1}, {1, 1, 1}), list({1, 0, 0}, {1, 1, 1, 3}),
                                              list({1}, {1, 1, 1}), list({0, 0, 0}, {1, 1, 1, 3}),
                                              2, even, MaskLengths{2, 6});
  EXPECT_TRUE(at::equal(kept_scores(*mask, {0, 1}, {0, 1}, {1, 2}, at::kCPU).flatten(),
                        at::tensor({1, 1, 1, 0, 0, 0}, at::kInt).to(at::kBool)));
  const KeptKeys kept = find_kept_keys(*mask, at::kCPU);
  EXPECT_TRUE(kept.without_gaps);
  EXPECT_EQ(kept.at(0, 0, 1), (IndexRange{0, 3}));
}

}  // namespace
}  // namespace stagecraft::detail
