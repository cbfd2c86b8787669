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
  expect_goals(bench::named_h_cases(), every() == 1 ? 60000 : 4000);
}

}  // namespace
}  // namespace stagecraft
