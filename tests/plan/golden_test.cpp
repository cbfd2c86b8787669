#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "stagecraft/plan/synthesise.h"

namespace stagecraft {
namespace {

// A line of tests/golden/plan/optima.txt, which solve_exact.py wrote.
struct Solved {
  ScheduleProblem problem;
  double optimum = 0;
};

Solved read_line(const std::string& line) {
  std::istringstream in(line);
  Solved solved;
  std::string objective;
  int32_t ranks = 0;
  int32_t stages = 0;
  in >> objective >> ranks >> stages >> solved.problem.microbatches;
  std::vector<std::optional<Rank>> placement;
  for (int32_t s = 0; s < stages; ++s) {
    int32_t r = 0;
    in >> r;
    placement.emplace_back(Rank(r));
  }
  ScheduleProblem& problem = solved.problem;
  problem.objective = objective == "span" ? Objective::kSpan : Objective::kStep;
  problem.placement = Placement::of(placement, ranks);
  problem.stages.resize(static_cast<std::size_t>(stages));
  for (StageLoad& load : problem.stages) in >> load.forward;
  for (StageLoad& load : problem.stages) in >> load.backward_input;
  for (StageLoad& load : problem.stages) in >> load.backward_weight;
  for (StageLoad& load : problem.stages) in >> load.memory_forward;
  for (StageLoad& load : problem.stages) in >> load.memory_input;
  in >> problem.link.latency;
  problem.ranks.resize(static_cast<std::size_t>(ranks));
  for (RankLimit& limit : problem.ranks) in >> limit.cap;
  in >> solved.optimum;
  EXPECT_TRUE(static_cast<bool>(in)) << line;
  return solved;
}

TEST(Optima, AreNotBelowTheBoundAndAreNearlyReached) {
  std::ifstream file(SC_PLAN_GOLDEN "/optima.txt");
  int count = 0;
  int reached = 0;
  for (std::string line; std::getline(file, line); ++count) {
    const Solved solved = read_line(line);
    EXPECT_LE(tight_bound(solved.problem).value, solved.optimum + 1e-6) << line;
    SynthesisOptions options;
    options.rounds = 400;
    const Synthesis result = synthesise(solved.problem, options);
    ASSERT_TRUE(result.schedule.has_value()) << line;
    EXPECT_GE(result.value, solved.optimum - 1e-6) << line;
    EXPECT_LE(result.value, 1.02 * solved.optimum + 1e-6) << line;
    if (result.value <= solved.optimum + 1e-6) ++reached;
  }
  EXPECT_EQ(count, 140);
  EXPECT_GE(reached, 130);
}

}  // namespace
}  // namespace stagecraft
