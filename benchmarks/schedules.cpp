// Generate, lower and verify schedules, and simulate them: ours and PyTorch's; then ours alone,
// from small to large.

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "benchmarks/harness.h"
#include "benchmarks/own_process.h"
#include "benchmarks/python_reference.h"
#include "stagecraft/base/error.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/passes/lower.h"
#include "stagecraft/schedule/verify.h"
#include "stagecraft/sim/simulate.h"
#include "stagecraft/sim/unit_steps.h"

namespace {

using namespace stagecraft;

Schedule make(const ScheduleShape& shape) {
  Schedule schedule = lower(build_schedule("Interleaved1F1B", shape));
  const Verdict verdict = verify(schedule);
  if (!verdict.ok()) throw Error(to_string(verdict.findings.front()));
  return schedule;
}

std::string name_of(const ScheduleShape& shape) {
  return fmt::format("P{} L{} M{}", shape.ranks, shape.stages_per_rank.value_or(1),
                     shape.microbatches);
}

void compare_with_pytorch(bench::Suite& suite) {
  const ScheduleShape shape = suite.quick() ? ScheduleShape{4, 8, 2} : ScheduleShape{64, 128, 4};
  bench::PythonReference python(
      "schedules_pytorch.py",
      {std::to_string(shape.ranks), std::to_string(shape.stages_per_rank.value_or(1)),
       std::to_string(shape.microbatches)});
  suite.compare("generate, lower, verify " + name_of(shape),
                bench::timed([&] { benchmark::DoNotOptimize(make(shape)); }),
                {{"PyTorch", python.run("make"), 0.01}});
  const Schedule schedule = make(shape);
  suite.compare("simulate, unit steps, " + name_of(shape),
                bench::timed([&] { benchmark::DoNotOptimize(simulate_unit_steps(schedule)); }),
                {{"PyTorch", python.run("simulate"), 0.01}});
  suite.compare("simulate, real costs, " + name_of(shape),
                bench::timed([&] { benchmark::DoNotOptimize(simulate(schedule)); }),
                {{"PyTorch's unit steps", python.run("simulate"), 0.01}});
}

// Each size in a process of its own, so that its memory is its own too.
void measure_alone(bench::Suite& suite) {
  std::vector<ScheduleShape> shapes = {{8, 80, 2}, {32, 256, 2}, {128, 640, 2}, {512, 2048, 2}};
  if (suite.quick()) shapes = {{2, 4, 2}, {4, 8, 2}};
  std::vector<double> per_action;
  for (const ScheduleShape& shape : shapes) {
    const int repetitions = suite.quick() || shape.ranks > 100 ? 1 : 2000 / shape.ranks;
    const bench::Usage usage = bench::run_in_own_process([&] {
      int64_t actions = 0;
      for (int i = 0; i < repetitions; ++i) actions = make(shape).num_actions();
      return static_cast<double>(actions);
    });
    const double actions = usage.result;
    const bool is_largest = shape.ranks == 512;
    const std::string what = fmt::format("{} ({:.2g} actions)", name_of(shape), actions);
    const double seconds = usage.seconds / repetitions;
    per_action.push_back(seconds / actions * 1e9);
    suite.report({what + ", time", seconds, "s", is_largest ? std::optional(5.0) : std::nullopt});
    suite.report({what + ", time per action", per_action.back(), "ns", std::nullopt});
    suite.report({what + ", memory", usage.peak_bytes / 1e6, "MB",
                  is_largest ? std::optional(1000.0) : std::nullopt});
    suite.report({what + ", memory per action", usage.peak_bytes / actions, "bytes", std::nullopt});
  }
  const auto [least, most] = std::minmax_element(per_action.begin(), per_action.end());
  suite.report({"time per action, largest by smallest", *most / *least, "x", 2.0});
}

void measure(bench::Suite& suite) {
  measure_alone(suite);
  compare_with_pytorch(suite);
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_suite("schedules", argc, argv, measure);
}
