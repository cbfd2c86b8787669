#pragma once

#include <functional>
#include <vector>

#include "stagecraft/plan/make_plan.h"

namespace stagecraft {

/// A built-in schedule for a split, with its time and memory.
struct BuiltInRow {
  PlanRow row;
  Schedule schedule;
};

struct BuiltInRows {
  std::vector<BuiltInRow> rows = {};
  std::vector<UnfitRow> unfit = {};
};

/// Every built-in schedule that trains, with each number of stages a rank, on the best split that
/// is known for it. 1F1B also on equal numbers of layers. A schedule that fits on no split is
/// listed as unfit. Tries the first candidates of each kind and the split with the most even work.
/// If `stop` returns true after the first schedule, returns the rows that were found.
BuiltInRows built_in_rows(const StageComposer& composer, const SearchSpace& space,
                          const std::vector<PlanCandidate>& candidates,
                          const std::function<bool()>& stop);

}  // namespace stagecraft
