// The planner's search on the settings of the zero-bubble papers, on unit costs and on stages that
// differ: bounds, results and times. Also plans of real models: predicted against measured.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "benchmarks/harness.h"
#include "benchmarks/plan_cases.h"
#include "benchmarks/plan_models.h"
#include "benchmarks/plan_ranks.h"
#include "benchmarks/plan_splits.h"
#include "stagecraft/plan/bound.h"
#include "stagecraft/plan/instance.h"
#include "stagecraft/plan/seeds.h"
#include "stagecraft/plan/synthesise.h"

namespace {

using namespace stagecraft;

Synthesis search(const ScheduleProblem& problem, double seconds) {
  SynthesisOptions options;
  options.time_limit =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
  return synthesise(problem, options);
}

// Checks the stated numbers of each case: its bound to the microsecond, and the value that the
// search must reach.
void measure_cases(bench::Suite& suite, const std::vector<bench::PlanCase>& cases, double seconds) {
  for (const bench::PlanCase& one : cases) {
    if (!suite.wants(one.name)) continue;
    const Synthesis found = search(one.problem, suite.quick() ? .01 : seconds);
    if (one.bound > 0) {
      suite.report({one.name + ", distance from the stated bound",
                    std::abs(lower_bound(one.problem).value - one.bound), "", 1.0});
    }
    const double goal = 100 * (one.goal / found.bound.value - 1);
    suite.report({fmt::format("{}: {:.0f} in {:.2f} s ({}), above its bound", one.name, found.value,
                              found.seconds, found.found_by),
                  100 * found.gap(), "%", goal + 1e-4});
    if (suite.quick()) return;
  }
}

void measure_uneven(bench::Suite& suite) {
  if (!suite.wants("family H")) return;
  std::vector<double> gaps;
  double worst_ample = 0;
  int at_bound = 0;
  for (const bench::PlanCase& one : bench::many_h_cases()) {
    const double gap = 100 * search(one.problem, suite.quick() ? .01 : 5).gap();
    gaps.push_back(gap);
    if (gap < 1e-6) ++at_bound;
    // The cap is the last number of the name.
    if (!one.name.ends_with(",0.9)")) worst_ample = std::max(worst_ample, gap);
    if (suite.quick() && gaps.size() == 4) break;
  }
  std::sort(gaps.begin(), gaps.end());
  double sum = 0;
  for (const double gap : gaps) sum += gap;
  const auto count = static_cast<double>(gaps.size());
  suite.report({fmt::format("family H, {} cases, {} at the bound, mean gap", gaps.size(), at_bound),
                sum / count, "%", .5});
  suite.report({"family H, 90 % of the gaps are at most", gaps[gaps.size() * 9 / 10], "%", 1.5});
  suite.report({"family H, worst gap", gaps.back(), "%", 8.0});
  suite.report({"family H, worst gap with 1.1 of 1F1B's memory or more", worst_ample, "%", 1.7});
}

double seconds_for(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void measure_speed(bench::Suite& suite) {
  const ScheduleProblem eight = bench::family_h({8, 2, "v", 64, 5, .2, 1});
  double bound = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 200; ++i) {
    bound = std::min(bound, seconds_for([&] { benchmark::DoNotOptimize(lower_bound(eight)); }));
  }
  suite.report({"speed, bound of P 8, V 2, M 64", 1e6 * bound, "us", 50.0});
  const double quick = seconds_for([&] { benchmark::DoNotOptimize(quick_score(eight)); });
  suite.report({"speed, quick score of P 8, V 2, M 64", 1e3 * quick, "ms", 40.0});

  const auto v =
      bench::paper_problem({"6.2B", 16, 48, 2, 14407, 14380, 9676, 1610}, 1, Objective::kSpan);
  suite.report({"speed, V 16x48 cap 1 at the bound", search(v, 10).seconds, "s", .3});
  const auto small =
      bench::paper_problem({"1.5B", 8, 24, 1, 18522, 18086, 9337, 601}, 1, Objective::kSpan);
  suite.report({"speed, 8x24 cap 1 at the bound", 1e3 * search(small, 10).seconds, "ms", 50.0});
  if (suite.quick()) return;
  const auto large =
      bench::paper_problem({"6.2B", 64, 512, 2, 9458, 9748, 7288, 879}, 1, Objective::kStep);
  suite.report({"speed, P 64, V 2, M 512, gap after 15 s", 100 * search(large, 15).gap(), "%", .3});
  std::vector<double> each;
  for (const int32_t m : {104, 1040, 10400}) {
    const auto problem =
        bench::paper_problem({"6.2B", 16, m, 2, 9458, 9748, 7288, 879}, 1, Objective::kStep);
    const plan::Instance in(problem);
    plan::Seeder seeder(in);
    plan::Words words;
    double time = std::numeric_limits<double>::infinity();
    for (int i = 0; i < 3; ++i) {
      time =
          std::min(time, seconds_for([&] { seeder.build(plan::fixed_starts(m).front(), words); }));
    }
    each.push_back(1e9 * time / static_cast<double>(in.num_actions()));
    suite.report({fmt::format("speed, a seed of {:.1g} actions, time for each",
                              static_cast<double>(in.num_actions())),
                  each.back(), "ns", std::nullopt});
  }
  const auto [least, most] = std::minmax_element(each.begin(), each.end());
  suite.report({"speed, time for each action of a seed, most by least", *most / *least, "x", 2.0});
}

void measure(bench::Suite& suite) {
  if (suite.wants("speed")) measure_speed(suite);
  measure_cases(suite, bench::single_stage_cases(), 10);
  measure_cases(suite, bench::v_cases(), 10);
  measure_cases(suite, bench::unit_cases(), 1);
  measure_cases(suite, bench::step_cases(), 10);
  measure_cases(suite, bench::named_h_cases(), 10);
  measure_uneven(suite);
  bench::measure_splits(suite);
  bench::measure_models(suite);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[1]) == bench::kPlanWorker)
    return bench::run_plan_worker(argv[2]);
  return bench::run_suite("plan", argc, argv, measure);
}
