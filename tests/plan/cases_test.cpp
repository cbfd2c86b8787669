#include <cstdlib>

#include <gtest/gtest.h>

#include "benchmarks/plan_cases.h"
#include "stagecraft/plan/synthesise.h"

namespace stagecraft {
namespace {

// A tenth of the cases, or all with SC_PLAN_ALL. Rounds, not seconds: no timed tests.
std::size_t every() {
  return std::getenv("SC_PLAN_ALL") != nullptr ? 1 : 10;
}

void expect_goals(const std::vector<bench::PlanCase>& cases, int64_t rounds) {
  for (std::size_t i = 0; i < cases.size(); i += every()) {
    SynthesisOptions options;
    options.rounds = rounds;
    const Synthesis result = synthesise(cases[i].problem, options);
    EXPECT_LE(result.value, cases[i].goal + 0.5)
        << cases[i].name << ": gap " << 100 * result.gap() << " %, by " << result.found_by;
  }
}

TEST(PlanCases, OneStageARank) {
  expect_goals(bench::single_stage_cases(), 1500);
}

TEST(PlanCases, V) {
  expect_goals(bench::v_cases(), 1200);
}

TEST(PlanCases, UnitCosts) {
  expect_goals(bench::unit_cases(), 300);
}

TEST(PlanCases, Step) {
  expect_goals(bench::step_cases(), 1200);
}

TEST(PlanCases, NamedUnevenStages) {
  // The small ones are annealed, sixteen moves a round.
  std::vector<bench::PlanCase> small;
  std::vector<bench::PlanCase> large;
  for (bench::PlanCase& one : bench::named_h_cases()) {
    const bool is_small = one.problem.stages.size() * one.problem.microbatches <= 400;
    (is_small ? small : large).push_back(std::move(one));
  }
  expect_goals(small, every() == 1 ? 60000 : 4000);
  expect_goals(large, every() == 1 ? 2500 : 300);
}

}  // namespace
}  // namespace stagecraft
