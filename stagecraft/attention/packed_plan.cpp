#include "stagecraft/attention/packed_plan.h"

#include <algorithm>
#include <utility>

namespace stagecraft::detail {
namespace {

using Segments = std::vector<PackedSegment>;

bool heads_are_equal(const KeptKeys& kept) {
  for (int64_t b = 0; b < kept.batch; ++b) {
    for (int64_t h = 1; h < kept.heads; ++h) {
      for (int64_t q = 0; q < kept.q_len; ++q) {
        if (kept.at(b, h, q) != kept.at(b, 0, q)) return false;
      }
    }
  }
  return true;
}

/// Segments of queries that keep the same keys.
Segments equal_queries(const KeptKeys& kept, int64_t b) {
  Segments segments;
  for (int64_t q = 0; q < kept.q_len; ++q) {
    const IndexRange& kv = kept.at(b, 0, q);
    if (!segments.empty() && segments.back().kv == kv) {
      segments.back().q.end = q + 1;
    } else {
      segments.push_back({{q, q + 1}, kv});
    }
  }
  return segments;
}

/// Segments in which each query keeps one key more at the end than the query before it. Keys more
/// than `window` before the last kept key are dropped.
Segments rising_queries(const KeptKeys& kept, int64_t b, int64_t window, bool& uses_window) {
  Segments segments;
  for (int64_t q = 0; q < kept.q_len; ++q) {
    const IndexRange& kv = kept.at(b, 0, q);
    const bool some = kv.size() > 0;
    const bool continues = !segments.empty() && some == (segments.back().kv.size() > 0);
    if (continues && !some) {
      segments.back().q.end = q + 1;
      continue;
    }
    if (continues && kv.end == segments.back().kv.end + 1) {
      const int64_t first = segments.back().kv.begin;
      if (kv.begin == std::max(first, kv.end - 1 - window)) {
        uses_window = uses_window || kv.begin > first;
        segments.back().q.end = q + 1;
        segments.back().kv.end = kv.end;
        continue;
      }
    }
    segments.push_back({{q, q + 1}, kv});
  }
  return segments;
}

/// Puts the keys that no query keeps into segments of their own. Returns nothing if segments share
/// keys, or if their keys are not in ascending order.
std::optional<Segments> cover_keys(const Segments& segments, int64_t q_len, int64_t kv_len) {
  Segments all;
  int64_t next = 0;
  for (const PackedSegment& segment : segments) {
    if (segment.kv.size() == 0) {
      all.push_back({segment.q, {next, next}});
      continue;
    }
    if (segment.kv.begin < next) return std::nullopt;
    if (segment.kv.begin > next) {
      all.push_back({{segment.q.begin, segment.q.begin}, {next, segment.kv.begin}});
    }
    all.push_back(segment);
    next = segment.kv.end;
  }
  if (next < kv_len) all.push_back({{q_len, q_len}, {next, kv_len}});
  return all;
}

}  // namespace

bool PackedPlan::is_whole() const {
  return std::ranges::all_of(members, [this](const Segments& segments) {
    if (segments.size() != 1 || window) return false;
    return !causal || segments.front().q.size() == segments.front().kv.size();
  });
}

std::optional<PackedPlan> plan_packed(const KeptKeys& kept) {
  if (!kept.without_gaps || !heads_are_equal(kept) || kept.batch == 0) return std::nullopt;
  int64_t widest = 0;
  for (const IndexRange& range : kept.ranges) widest = std::max(widest, range.size());

  for (const bool causal : {false, true}) {
    PackedPlan plan;
    plan.causal = causal;
    bool uses_window = false;
    for (int64_t b = 0; b < kept.batch; ++b) {
      auto segments = cover_keys(
          causal ? rising_queries(kept, b, widest - 1, uses_window) : equal_queries(kept, b),
          kept.q_len, kept.kv_len);
      if (!segments) break;
      plan.members.push_back(std::move(*segments));
    }
    if (static_cast<int64_t>(plan.members.size()) != kept.batch) continue;
    if (uses_window) plan.window = widest - 1;
    return plan;
  }
  return std::nullopt;
}

}  // namespace stagecraft::detail
