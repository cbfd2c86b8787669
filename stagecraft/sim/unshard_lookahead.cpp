#include "stagecraft/sim/unshard_lookahead.h"

#include <cstddef>

#include "stagecraft/schedule/passes/shard_stages.h"
#include "stagecraft/sim/simulate.h"

namespace stagecraft {

std::vector<int32_t> find_unshard_lookahead(const Schedule& schedule, const CostModel& costs,
                                            const StageGraph& graph, int32_t max_active_stages) {
  std::vector<int32_t> lookahead =
      resolve_lookahead(Lookahead::kFull, schedule.num_ranks(), max_active_stages);
  const auto makespan = [&] {
    return simulate(shard_stages(schedule, max_active_stages, lookahead), costs, graph).makespan;
  };
  // The tolerance is needed because sums of times in a different order differ in their last bits.
  const double best = makespan() * (1 + 1e-9);
  for (int32_t& own : lookahead) {
    const int32_t full = own;
    for (own = 1; own < full && makespan() > best; ++own) {
    }
  }
  return lookahead;
}

}  // namespace stagecraft
