#pragma once

#include <functional>
#include <vector>

#include "stagecraft/plan/make_plan.h"

namespace stagecraft {

/// A built-in schedule for a split, and what it takes.
struct BuiltInRow {
  PlanRow row;
  Schedule schedule;
};

struct BuiltInRows {
  std::vector<BuiltInRow> rows = {};
  std::vector<UnfitRow> unfit = {};
};

/// Every built-in schedule that trains, with each number of stages a rank: on the best split that
/// is known for it, and 1F1B on equal numbers of layers as well. A schedule that fits on no split
/// is unfit. Looks at the first candidates of each kind and at the split with the most even work.
/// Ends early, with what it has, when `stop` returns true after the first schedule.
BuiltInRows built_in_rows(const StageComposer& composer, const SearchSpace& space,
                          const std::vector<PlanCandidate>& candidates,
                          const std::function<bool()>& stop);

}  // namespace stagecraft
