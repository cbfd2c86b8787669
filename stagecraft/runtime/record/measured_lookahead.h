#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stagecraft/runtime/record/recording.h"
#include "stagecraft/sim/cost_model.h"

namespace stagecraft {

/// How many stages ahead each rank unshards, found from measured times
/// (Runner::fit_unshard_lookahead).
struct MeasuredLookahead {
  std::vector<int32_t> lookahead = {};  ///< by rank
  int32_t max_active_stages = 0;        ///< the largest lookahead that a rank could have
  /// The measured times, in microseconds: F, I, W, B and gather of each stage.
  CostModel costs = {};
  /// Microseconds of a simulated step with these costs, with this lookahead and with the largest.
  double makespan = 0;
};

/// The costs of a step for find_unshard_lookahead, in microseconds: for each stage the median of
/// what its F, I, W and B took, waiting excluded. `gather`: by stage. Transfers are free.
/// ArgumentError as from measured_costs.
CostModel lookahead_costs(const Recording& recording, std::vector<double> gather);

/// One line, without "\n": what was found, and from which times.
std::string to_text(const MeasuredLookahead& found);

}  // namespace stagecraft
