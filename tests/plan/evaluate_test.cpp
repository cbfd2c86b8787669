#include "stagecraft/plan/evaluate.h"

#include <gtest/gtest.h>

#include "stagecraft/plan/quick_clock.h"
#include "stagecraft/plan/seeds.h"
#include "stagecraft/sim/simulate.h"
#include "tests/plan/random_problem.h"

namespace stagecraft {
namespace {

// The simulator counts neither peaks nor what I takes beyond F's memory.
bool has_simulated_memory(const ScheduleProblem& problem) {
  for (const StageLoad& load : problem.stages) {
    if (load.peak_forward > 0 || load.peak_input > 0 || load.peak_weight > 0) return false;
    if (load.is_split && load.memory_input > load.memory_forward) return false;
  }
  return true;
}

TEST(Evaluator, IsTheSimulator) {
  Random random(1);
  plan::Random dates(1);
  int compared = 0;
  int memory_compared = 0;
  for (int i = 0; i < 400; ++i) {
    const ScheduleProblem problem = odd_problem(random);
    const plan::Instance in(problem);
    plan::Evaluator evaluator(in);
    plan::Seeder seeder(in);
    plan::Words words = plan::sequential_words(in);
    for (int k = 0; k < 4; ++k) {
      if (k > 0 && !seeder.build(plan::random_dates(dates, in.microbatches), words)) continue;
      const plan::Score score = evaluator.run(words);
      ASSERT_TRUE(score.runs) << "case " << i;
      const Simulation simulation =
          simulate(plan::to_schedule(problem, words), cost_model(problem), stage_graph(problem));
      ASSERT_DOUBLE_EQ(score.makespan, simulation.makespan) << "case " << i;
      ASSERT_DOUBLE_EQ(score.span, simulation.span) << "case " << i;
      ++compared;
      if (!has_simulated_memory(problem)) continue;
      for (std::size_t r = 0; r < problem.ranks.size(); ++r) {
        ASSERT_NEAR(evaluator.peaks()[r] + problem.ranks[r].fixed, simulation.ranks[r].peak_memory,
                    1e-9 * simulation.ranks[r].peak_memory + 1e-9)
            << "case " << i << ", rank " << r;
        ++memory_compared;
      }
    }
  }
  EXPECT_GT(compared, 800);
  EXPECT_GT(memory_compared, 30);
}

TEST(Evaluator, SaysThatRanksWaitForEachOther) {
  ScheduleProblem problem;
  problem.stages.resize(2);
  problem.placement = Placement::loop(2, 2);
  problem.microbatches = 1;
  const plan::Instance in(problem);
  plan::Words words = plan::sequential_words(in);
  std::swap(words[1][0], words[1][1]);  // I before F
  EXPECT_FALSE(plan::Evaluator(in).run(words).runs);
}

TEST(QuickClock, IsTheEvaluatorAfterEveryChange) {
  Random random(2);
  plan::Random dates(2);
  int changes = 0;
  for (int i = 0; i < 200; ++i) {
    ScheduleProblem problem = odd_problem(random);
    problem.link.bandwidth = std::nullopt;
    problem.links.clear();
    const plan::Instance in(problem);
    plan::Seeder seeder(in);
    plan::Words words;
    if (!seeder.build(plan::random_dates(dates, in.microbatches), words)) continue;
    plan::Evaluator evaluator(in);
    plan::QuickClock clock(in);
    ASSERT_TRUE(clock.start(words));
    clock.accept();
    for (int k = 0; k < 30; ++k) {
      const auto r = static_cast<std::size_t>(random.between(0, in.ranks - 1));
      if (words[r].size() < 2) continue;
      const std::size_t place = random.below(words[r].size() - 1);
      plan::Op& a = words[r][place];
      plan::Op& b = words[r][place + 1];
      if (a.stage == b.stage) continue;  // keeps F, I and W of a microbatch in order
      std::swap(a, b);
      const plan::Score score = evaluator.run(words);
      const bool runs = clock.change(words, static_cast<int32_t>(r), place);
      ASSERT_EQ(runs, score.runs) << "case " << i;
      if (runs) {
        ASSERT_EQ(clock.value(), in.is_span ? score.span : score.makespan) << "case " << i;
        ++changes;
      }
      if (runs && random.one_in(2)) {
        clock.accept();
      } else {
        std::swap(words[r][place], words[r][place + 1]);
      }
    }
  }
  EXPECT_GT(changes, 500);
}

}  // namespace
}  // namespace stagecraft
