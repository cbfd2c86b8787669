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

/// When a search must end. Without a deadline it depends on the problem alone.
struct SearchLimit {
  std::optional<std::chrono::steady_clock::time_point> deadline = std::nullopt;
  const std::atomic<bool>* cancel = nullptr;

  bool reached() const;
  double seconds_left() const;  ///< infinite without a deadline
};

/// A choice that the search found, with its bound and score.
struct PlanCandidate {
  PlanChoice choice;
  double bound = 0;       ///< for every order of these stages
  double free_bound = 0;  ///< the bound without caps
  double score = 0;       ///< the bound or, if memory binds, the time of a few schedules
  bool fits = false;      ///< every rank holds at least one microbatch
  double lacks = 0;       ///< memory that the fullest rank lacks
  double uneven = 0;      ///< the sum of the squares of the ranks' work
  bool is_timed = false;  ///< the score is that of a schedule, gathers included
};

/// The choices that the search may make.
struct SearchSpace {
  std::vector<int32_t> stages_per_rank = {1, 2};
  std::vector<PlacementStyle> placements = {PlacementStyle::kLoop, PlacementStyle::kV};
  RecomputeChoice recompute = RecomputeChoice::kAuto;
};

/// Searches splits, placements and recompute. A local search starts from exact balances. Its moves:
/// move a boundary by one or two layers, shift two to four neighbouring boundaries, recompute a
/// stage or not, swap two ranks that differ. The score is the lower bound and, among equals, the
/// sum of the squares of the ranks' work.
///
/// If memory binds, the bound is too low to compare by. Then the best candidates are compared by
/// the schedules of a few seeds, and their recompute is toggled stage by stage, until the limit.
/// Returns the best candidate first; candidates that do not fit come last. With one stage a rank
/// all placements are the same, so one is searched.
std::vector<PlanCandidate> search_splits(const StageComposer& composer, const SearchSpace& space,
                                         const SearchLimit& limit);

/// The bounds of a choice, whether it fits, and how much memory it lacks.
PlanCandidate rate(const StageComposer& composer, PlanChoice choice);

}  // namespace stagecraft
