// Generates, lowers, verifies and simulates schedules: ours and PyTorch's, then ours alone, from
// small to large.

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "benchmarks/harness.h"
#include "benchmarks/own_process.h"
#include "benchmarks/python_reference.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/passes/add_waits.h"
#include "stagecraft/schedule/passes/limit_sends.h"
#include "stagecraft/schedule/passes/lower.h"
#include "stagecraft/sim/simulate.h"
#include "stagecraft/sim/unit_steps.h"

namespace {

using namespace stagecraft;

// Lowering verifies before the first pass and after each pass, so the result is verified, too.
Schedule make(const ScheduleShape& shape) {
  return lower(build_schedule("Interleaved1F1B", shape));
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

// (torch 2.15 takes 43 s for the same shape and limit.)
void measure_limit(bench::Suite& suite) {
  const ScheduleShape shape = suite.quick() ? ScheduleShape{2, 4, 2} : ScheduleShape{8, 64, 2};
  const Schedule schedule = add_send_waits(make(shape));
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    benchmark::DoNotOptimize(limit_sends(schedule, 1));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count());
  }
  suite.report({"limit_sends to 1, " + name_of(shape), best * 1e3, "ms", 50.0});
}

// Each size runs in a process of its own, so that its memory can be measured.
void measure_alone(bench::Suite& suite) {
  std::vector<ScheduleShape> shapes = {{8, 112, 2}, {32, 256, 2}, {128, 640, 2}, {512, 2048, 2}};
  if (suite.quick()) shapes = {{2, 4, 2}, {4, 8, 2}};
  std::vector<double> nanoseconds;
  std::vector<double> bytes;
  for (const ScheduleShape& shape : shapes) {
    const int repetitions = suite.quick() || shape.ranks > 100 ? 1 : 2000 / shape.ranks;
    const bench::Usage usage = bench::run_in_own_process([&] {
      int64_t actions = 0;
      for (int i = 0; i < repetitions; ++i) actions = make(shape).num_actions();
      return static_cast<double>(actions);
    });
    const double actions = usage.result;
    const double seconds = usage.seconds / repetitions;
    const std::string what = fmt::format("{} ({:.2g} actions)", name_of(shape), actions);
    nanoseconds.push_back(seconds / actions * 1e9);
    bytes.push_back(usage.heap_bytes / actions);
    suite.report({what + ", time per action", nanoseconds.back(), "ns", std::nullopt});
    suite.report({what + ", memory per action", bytes.back(), "bytes", std::nullopt});
    if (shape.ranks != 512) continue;
    suite.report({what + ", time", seconds, "s", 5.0});
    suite.report({what + ", memory of the process", usage.process_bytes / 1e6, "MB", 1000.0});
  }
  const auto spread = [](const std::vector<double>& values) {
    const auto [least, most] = std::minmax_element(values.begin(), values.end());
    return *most / *least;
  };
  suite.report({"time per action, most by least", spread(nanoseconds), "x", 2.0});
  suite.report({"memory per action, most by least", spread(bytes), "x", 2.0});
}

void measure(bench::Suite& suite) {
  measure_limit(suite);
  measure_alone(suite);
  compare_with_pytorch(suite);
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_suite("schedules", argc, argv, measure);
}
