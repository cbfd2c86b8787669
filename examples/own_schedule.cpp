// Makes a schedule of your own, verifies, lowers, times and draws it. Needs no torch.
//
//   build/bin/own_schedule [FILE.html]

#include <cstdio>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/schedule/passes/lower.h"
#include "stagecraft/schedule/passes/split_backward.h"
#include "stagecraft/schedule/verify.h"
#include "stagecraft/sim/simulate.h"
#include "stagecraft/viz/html.h"

namespace {

using namespace stagecraft;

// 1F1B with a split backward. A rank delays as many W as there are ranks before it, so that they
// fill its idle time.
Schedule late_weights(int32_t ranks, int32_t microbatches) {
  const Schedule base =
      split_backward(build_schedule("1F1B", {.ranks = ranks, .microbatches = microbatches}));
  std::vector<ActionList> lists;
  for (int32_t r = 0; r < ranks; ++r) {
    ActionList list;
    std::vector<Action> owed;
    for (const Action action : base.actions(Rank(r))) {
      if (action.type() != ActionType::kBackwardWeight) {
        list.push_back(action);
        continue;
      }
      owed.push_back(action);
      if (static_cast<int32_t>(owed.size()) > r) {
        list.push_back(owed.front());
        owed.erase(owed.begin());
      }
    }
    list.insert(list.end(), owed.begin(), owed.end());
    lists.push_back(std::move(list));
  }
  return {Level::kCompute, base.placement(), std::move(lists)};
}

void show(const char* name, const Schedule& schedule, const CostModel& costs) {
  const Simulation run = simulate(schedule, costs);
  std::printf("%-14s time %4.0f   bubble %4.1f %%   peak memory %.0f\n", name, run.makespan,
              100 * run.bubble, run.peak_memory);
}

int run(const std::string& page) {
  constexpr int32_t kRanks = 4;
  constexpr int32_t kMicrobatches = 8;
  const CostModel costs = parse_costs("F=10,B=10,W=8,C=1");
  const Schedule own = late_weights(kRanks, kMicrobatches);

  show("1F1B", build_schedule("1F1B", {.ranks = kRanks, .microbatches = kMicrobatches}), costs);
  show("late weights", own, costs);

  // The verifier lists the defects of a wrong schedule.
  std::vector<ActionList> lists = own.lists();
  std::swap(lists[0][0], lists[0][lists[0].size() - 2]);
  const Schedule wrong(Level::kCompute, own.placement(), std::move(lists));
  std::printf("%s\n", to_string(verify(wrong).findings.front()).c_str());

  const Schedule lowered = lower(own);  // throws ScheduleError if it could not run
  std::printf("lowered: %ld actions, a CSV of %zu bytes that PyTorch reads too\n",
              static_cast<long>(lowered.num_actions()), to_csv(lowered).size());

  if (page.empty()) return 0;
  const StageGraph chain = StageGraph::chain(own.num_stages());
  std::ofstream out(page);
  out << draw_html(own, simulate(own, costs), chain, {.title = "1F1B, late weights"});
  out.close();
  if (!out) {
    std::fprintf(stderr, "cannot write %s\n", page.c_str());
    return 1;
  }
  std::printf("look at %s\n", page.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? argv[1] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "own_schedule: %s\n", error.what());
    return 1;
  }
}
