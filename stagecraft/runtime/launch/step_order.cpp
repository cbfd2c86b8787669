#include "stagecraft/runtime/launch/step_order.h"

#include "stagecraft/base/check.h"
#include "stagecraft/schedule/action_index.h"
#include "stagecraft/schedule/list_runner.h"
#include "stagecraft/schedule/needs.h"

namespace stagecraft::detail {

std::vector<RankSlot> one_thread_order(const Schedule& schedule, const StageGraph& graph) {
  ActionIndex index(schedule);
  require<Error>(index.add_all(schedule),
                 "an action is in the schedule twice, so no thread can execute it");
  // Ranks that are threads of one process never wait for a send.
  const Needs needs(schedule, graph, Needs::Blocks::kNothing);
  ListRunner runner(schedule, index, needs);
  std::vector<RankSlot> order;
  const bool ran = runner.run([&](std::size_t rank, std::size_t offset, std::size_t /*length*/) {
    order.push_back({Rank(static_cast<int32_t>(rank)), offset});
  });
  require<Error>(ran, "the ranks of the schedule wait for each other in a cycle");
  return order;
}

}  // namespace stagecraft::detail
