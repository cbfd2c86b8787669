#include "benchmarks/plan_ranks.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <iostream>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include "benchmarks/plan_subjects.h"
#include "benchmarks/python_reference.h"
#include "stagecraft/base/error.h"
#include "stagecraft/runtime/record/report.h"
#include "stagecraft/runtime/runner.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/transport/world/world.h"

namespace stagecraft::bench {
namespace {

constexpr int32_t kProcesses = 4;
constexpr int32_t kProcessMicrobatches = 8;

/// Steps of one pipeline on all ranks; the median of their makespans in milliseconds.
double run_steps(Runner& runner, const PlanSubject& subject, int steps,
                 std::vector<at::Tensor>& losses) {
  std::vector<double> times;
  for (int i = 0; i < steps + 2; ++i) {
    StepResult result =
        runner.step(subject.model.batch, {.outputs = OutputMode::kNone, .everywhere = true});
    if (i >= 2) times.push_back(1e-3 * make_report(runner.recorded_run().recording).makespan);
    losses = std::move(result.losses);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

struct Answers {
  double predicted = 0;
  double measured = 0;
  double different = 0;
  double latency = 0;
};

Answers plan_and_run(Transport& transport, const std::string& path) {
  at::manual_seed(7);  // the same rows on every rank
  const PlanSubject subject = exported_subject("LLaMA", path, 8192, kProcessMicrobatches);
  MeasuredPlanOptions options;
  options.search.time_limit = std::chrono::seconds(3);
  options.transport = &transport;
  const SavedPlan plan =
      plan_measured(subject.model, problem_for(kProcesses, kProcessMicrobatches), options).saved;
  const auto make = [&](const Pipe& pipe, const Schedule& schedule) {
    return Runner(transport, pipe,
                  {.source = ScheduleSource::fixed(schedule),
                   .loss = subject.model.loss,
                   .seed = 1,
                   .threads_per_rank = 1});
  };
  Answers answers{.predicted = plan.predicted, .latency = plan.problem.link.latency};
  std::vector<at::Tensor> planned_losses;
  std::vector<at::Tensor> losses;
  Runner planned = make(subject.model.split(plan.model.split_points), plan.schedule);
  for (std::size_t s = 0; s < plan.choice.recompute.size(); ++s) {
    const StageId stage(static_cast<int32_t>(s));
    if (plan.choice.recompute[s] && plan.schedule.placement().get_rank(stage) == transport.rank()) {
      planned.stage(stage).set_recompute(true);
    }
  }
  answers.measured = run_steps(planned, subject, 15, planned_losses);
  Runner plain = make(cut_at(subject, equal_layers(subject, kProcesses)),
                      build_schedule("1F1B", {kProcesses, kProcessMicrobatches, 1}));
  run_steps(plain, subject, 1, losses);
  answers.different = losses.size() == planned_losses.size() ? 0 : 1;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    answers.different += !losses[i].equal(planned_losses[i]);
  }
  return answers;
}

std::string program_path() {
  std::string path(4096, '\0');
  const ssize_t size = readlink("/proc/self/exe", path.data(), path.size());
  if (size <= 0) throw Error("this program does not find itself");
  path.resize(static_cast<std::size_t>(size));
  return path;
}

}  // namespace

int run_plan_worker(const std::string& path) {
  try {
    at::set_num_threads(1);
    World world = World::from_environment({.ranks = kProcesses});
    world.run([&](Transport& transport) {
      const Answers answers = plan_and_run(transport, path);
      if (transport.rank() != Rank(0)) return;
      for (std::string line; std::getline(std::cin, line);) {
        const std::string name = line.substr(0, line.find(' '));
        std::printf("%.9g\n", name == "predicted"  ? answers.predicted
                              : name == "measured" ? answers.measured
                              : name == "latency"  ? answers.latency
                                                   : answers.different);
        std::fflush(stdout);
      }
    });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}

void measure_processes(Suite& suite, const std::string& what, const std::string& path) {
  PythonReference ranks("step_ranks.py", {program_path(), kPlanWorker, path, "--", "gloo",
                                          std::to_string(kProcesses)});
  const double predicted = ranks.run("predicted")(1);
  const double measured = ranks.run("measured")(1);
  suite.report(
      {fmt::format("{}: planned {:.1f} ms, predicted {:.1f}, off by", what, measured, predicted),
       100 * std::abs(predicted / measured - 1), "%", 10.0});
  suite.report({what + ": latency of a transfer", ranks.run("latency")(1), "ms"});
  suite.report(
      {what + ": losses that differ from those of 1F1B", ranks.run("different")(1), "", 0.0});
}

}  // namespace stagecraft::bench
