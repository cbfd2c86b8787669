#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/base/index.h"
#include "stagecraft/base/indexed_vector.h"

namespace stagecraft {

/// Which rank holds which stages. An immutable value.
///
///   Placement::loop(4, 8);   // 0 1 2 3 0 1 2 3
///   Placement::v(4, 8);      // 0 1 2 3 3 2 1 0
class Placement {
 public:
  /// Stage s on rank s mod ranks. ArgumentError unless 1 <= ranks <= stages.
  static Placement loop(int32_t ranks, int32_t stages);
  /// Up and down through the ranks. ArgumentError unless `stages` is also a multiple of `ranks`.
  static Placement v(int32_t ranks, int32_t stages);
  /// "loop" or "v".
  static Placement from_style(std::string_view style, int32_t ranks, int32_t stages);
  /// Any placement: one entry a stage, nothing for a stage that no rank holds. The verifier refuses
  /// such a stage. ArgumentError for a rank outside [0, ranks).
  static Placement of(std::vector<std::optional<Rank>> stage_to_rank, int32_t ranks);

  int32_t num_ranks() const { return static_cast<int32_t>(first_.size()) - 1; }
  int32_t num_stages() const { return rank_of_.size(); }

  /// ArgumentError for a stage that does not exist or that no rank holds.
  Rank get_rank(StageId stage) const;
  std::optional<Rank> find_rank(StageId stage) const;
  /// The stages of a rank, ascending. ArgumentError for a rank that does not exist.
  std::span<const StageId> stages(Rank rank) const;

  /// The entry of `ranks` for a stage that no rank holds.
  static constexpr Rank kNowhere{-1};
  /// The rank of each stage. Fast to look up in loops.
  const IndexedVector<StageId, Rank>& ranks() const { return rank_of_; }

  friend bool operator==(const Placement&, const Placement&) = default;

 private:
  Placement(IndexedVector<StageId, Rank> rank_of, int32_t ranks);

  IndexedVector<StageId, Rank> rank_of_;
  std::vector<StageId> stages_;  // grouped by rank
  std::vector<int32_t> first_;   // where each rank's group starts; one more entry than ranks
};

/// The ranks of the stages in order: "0 1 1 0", "-" for a stage that no rank holds.
std::string to_string(const Placement& placement);

}  // namespace stagecraft
