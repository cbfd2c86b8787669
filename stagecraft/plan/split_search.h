#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "stagecraft/plan/plan_choice.h"

namespace stagecraft {

/// Which stages may recompute.
enum class RecomputeChoice : uint8_t { kAuto, kNone, kAll };

/// When a search has to end. Without a deadline it depends on the problem alone.
struct SearchLimit {
  std::optional<std::chrono::steady_clock::time_point> deadline = std::nullopt;
  const std::atomic<bool>* cancel = nullptr;

  bool reached() const;
  double seconds_left() const;  ///< infinite without a deadline
};

/// A choice that the search found, and how good it can be.
struct PlanCandidate {
  PlanChoice choice;
  double bound = 0;       ///< no order of these stages takes less
  double free_bound = 0;  ///< the same without caps
  double score = 0;       ///< the bound or, where memory binds, what a few schedules took
  bool fits = false;      ///< every rank holds at least one microbatch
  double lacks = 0;       ///< memory that the fullest rank lacks
  double uneven = 0;      ///< the squares of the ranks' work, added
  bool is_timed = false;  ///< the score is that of a schedule, gathers included
};

/// What the search may choose from.
struct SearchSpace {
  std::vector<int32_t> stages_per_rank = {1, 2};
  std::vector<PlacementStyle> placements = {PlacementStyle::kLoop, PlacementStyle::kV};
  RecomputeChoice recompute = RecomputeChoice::kAuto;
};

/// Where to split the model, stages to ranks and recompute, by local search from exact balances:
/// move a boundary by one or two layers, shift two to four neighbouring boundaries, recompute a
/// stage or not, swap two ranks that differ. The score is the lower bound and, among equals, the
/// sum of the squares of the ranks' work.
///
/// Where memory binds, the bound is too hopeful. There the best candidates are compared by the
/// schedules of a few seeds, and recompute is toggled stage by stage, the best first, until the
/// limit. Returns the best first; those that do not fit come last. Placements that are not
/// different (one stage a rank) are searched once.
std::vector<PlanCandidate> search_splits(const StageComposer& composer, const SearchSpace& space,
                                         const SearchLimit& limit);

/// The bound, and whether and by how much the choice does not fit.
PlanCandidate rate(const StageComposer& composer, PlanChoice choice);

}  // namespace stagecraft
