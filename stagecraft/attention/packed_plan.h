#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "stagecraft/attention/kept_keys.h"

namespace stagecraft::detail {

/// Neighbouring queries that attend to neighbouring keys, and to no others. The queries or the keys
/// may be empty.
struct PackedSegment {
  IndexRange q;
  IndexRange kv;

  friend bool operator==(const PackedSegment&, const PackedSegment&) = default;
};

/// A mask as sequences that are packed one after another, as fused kernels take them. Within a
/// segment of n queries and m keys all scores are kept, or, if `causal`, those with
///
///   i + (m - n) - window <= j <= i + (m - n)     for query i and key j of the segment
///
///   documents of 2 and 3     causal documents     causal, window 1
///   ██···                    █····                █····
///   ██···                    ██···                ██···
///   ··███                    ··█··                ·██··
///   ··███                    ··██·                ··██·
///   ··███                    ··███                ···██
///   q 0-2 kv 0-2, q 2-5 kv 2-5 (the first two)    q 0-5 kv 0-5 (the last)
struct PackedPlan {
  /// One for each member of the mask's batch: segments in ascending order that cover all queries
  /// and all keys.
  std::vector<std::vector<PackedSegment>> members;
  bool causal = false;
  /// Without a value: all keys of the segment up to the diagonal.
  std::optional<int64_t> window;

  /// Whether every score is kept, or every score of a square up to the diagonal.
  bool is_whole() const;
};

/// Nothing if the mask is not of this kind: queries with gaps between their keys, heads that
/// differ, keys that belong to several segments.
std::optional<PackedPlan> plan_packed(const KeptKeys& kept);

}  // namespace stagecraft::detail
