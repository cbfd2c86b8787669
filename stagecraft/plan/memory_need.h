#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stagecraft/base/error.h"
#include "stagecraft/plan/plan_choice.h"
#include "stagecraft/plan/split_search.h"

namespace stagecraft {

/// No plan fits into the memory of the ranks.
class DoesNotFit : public Error {
 public:
  /// `lines` say what is missing and what would help, one sentence each.
  explicit DoesNotFit(std::vector<std::string> lines);

  const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::vector<std::string> lines_;
};

/// The least memory for each rank, all ranks alike, with which some plan of the space has a
/// schedule, and that plan's choice. Exact for one and for two stages a rank, by dynamic
/// programming over all splits and recompute of every stage (two stages a rank: up to about 90
/// layers in a loop and 200 in a V). Beyond that by local search.
struct LeastMemory {
  double memory = 0;
  PlanChoice choice = {};
};
/// Nothing if the model has fewer layers than stages.
std::optional<LeastMemory> least_memory(const StageComposer& composer, const SearchSpace& space);

/// The choice that comes closest to fitting into the ranks' own memories: the least need / memory
/// of the fullest rank. Found like least_memory. Nothing if no rank has a limit, and if the model
/// has fewer layers than stages.
std::optional<PlanChoice> choose_for_memory(const StageComposer& composer,
                                            const SearchSpace& space);

/// The memory that each rank needs to run the microbatches of the choice one after the other.
std::vector<double> memory_needs(const StageComposer& composer, const PlanChoice& choice);

/// Sentences about a problem without a plan that fits: the rank that lacks memory in the choice
/// that comes closest, a layer that fits on no rank, the least memory, the number of ranks that
/// would be enough.
std::vector<std::string> explain_unfit(const StageComposer& composer, const SearchSpace& space,
                                       const PlanChoice& nearest);

/// Memory of a problem as text: "6500", "7.90 GiB".
std::string format_memory(const PlanProblem& problem, double memory);

}  // namespace stagecraft
