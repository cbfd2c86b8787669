#include "benchmarks/step_ranks.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <sched.h>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>

#include "benchmarks/busy_cores.h"
#include "benchmarks/mlp.h"
#include "benchmarks/mpi_pair.h"
#include "benchmarks/overlap_case.h"
#include "benchmarks/python_reference.h"
#include "benchmarks/request.h"
#include "stagecraft/base/error.h"
#include "stagecraft/runtime/runner.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/stage/callable.h"
#include "stagecraft/transport/world/world.h"

namespace stagecraft::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int32_t kStepRanks = 2;
constexpr int64_t kBatch = 64;
constexpr int64_t kTiny = 16;
constexpr int64_t kReal = 512;
/// The speed of a link that takes 20 ms for 8 MB, and that of a link for quick runs.
constexpr int kLinkMegabits = 3200;
constexpr int kLinkMegabitsQuick = 20'000;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

Deadline step_deadline() {
  return Deadline::after(std::chrono::seconds(60));
}

/// Pins the thread to the r-th processor that this program may use, as PyTorch's ranks are.
void pin(Rank rank) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < kStepRanks)
    return;
  int left = rank.value();
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || left-- != 0) continue;
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(cpu, &own);
    sched_setaffinity(0, sizeof own, &own);
    return;
  }
}

// A rank ---------------------------------------------------------------------------------------

/// The pipeline of a rank, which runs the steps of a case.
class StepCase {
 public:
  StepCase(Transport& transport, const std::string& schedule, int64_t hidden, int32_t microbatches)
      : microbatches_(microbatches) {
    const auto source = ScheduleSource::named(schedule, kStepRanks);
    const Placement& placement = source.placement();
    const int32_t count = placement.num_stages();
    std::vector<Stage> stages;
    for (const StageId stage : placement.stages(transport.rank())) {
      const Mlp mlp(hidden);
      stages.emplace_back(stage, count, stage_body(mlp, mlp.parameters()));
    }
    runner_ = std::make_unique<Runner>(
        transport, std::move(stages),
        PipelineOptions{
            .source = source,
            .loss = [](const at::Tensor& y, const at::Tensor& t) { return at::mse_loss(y, t); },
            .seed = 7});
    if (placement.get_rank(StageId(0)) == transport.rank()) {
      args_ = {at::randn({kBatch, hidden})};
    }
    if (placement.get_rank(StageId(count - 1)) == transport.rank()) {
      target_ = at::randn({kBatch, hidden});
    }
  }

  void step() { runner_->step(args_, {}, target_, {.microbatches = microbatches_}); }

 private:
  int32_t microbatches_;
  std::unique_ptr<Runner> runner_;
  Args args_;
  c10::IValue target_;
};

void serve(Transport& transport, int32_t microbatches) {
  std::map<std::string, std::unique_ptr<StepCase>> cases;
  std::unique_ptr<OverlapCase> overlap;
  for (;;) {
    const std::string line = bench::next_request(transport);
    if (line == "end") return;
    const std::string name = line.substr(0, line.find(' '));
    const int iterations = std::atoi(line.c_str() + name.size());
    double answer = 0;
    if (name == "overlap") {
      if (!overlap) overlap = std::make_unique<OverlapCase>(transport);
      answer = overlap->run();
    } else {
      auto& found = cases[name];
      const auto slash = name.find('/');
      if (!found) {
        found = std::make_unique<StepCase>(transport, name.substr(0, slash),
                                           std::atoll(name.c_str() + slash + 1), microbatches);
      }
      transport.barrier(step_deadline());
      const auto begin = Clock::now();
      for (int i = 0; i < iterations; ++i) found->step();
      transport.barrier(step_deadline());
      answer = seconds_since(begin);
    }
    if (transport.rank() == Rank(0)) {
      std::printf("%.9g\n", answer);
      std::fflush(stdout);
    }
  }
}

// The suite ------------------------------------------------------------------------------------

struct Contender {
  std::string name;                     ///< "gloo"
  std::vector<std::string> arguments;   ///< arguments of step_ranks.py
  std::vector<std::string> by_network;  ///< the same over an interface; empty: it uses none
};

std::string own_path() {
  std::string path(4096, '\0');
  const ssize_t size = readlink("/proc/self/exe", path.data(), path.size());
  if (size <= 0) throw Error("this program does not find itself");
  path.resize(static_cast<std::size_t>(size));
  return path;
}

std::vector<Contender> contenders() {
  std::vector<Contender> all = {{"gloo", {"gloo"}, {"gloo"}}, {"threads", {"local"}, {}}};
  for (const MpiLauncher& launcher : mpi_launchers()) {
    if (launcher.command.empty()) continue;
    std::vector<std::string> arguments = {"mpi"};
    arguments.insert(arguments.end(), launcher.command.begin(), launcher.command.end());
    std::vector<std::string> by_network = arguments;
    by_network.insert(by_network.end(), launcher.by_network.begin(), launcher.by_network.end());
    for (auto* const each : {&arguments, &by_network}) {
      each->insert(each->end(), {"-np", std::to_string(kStepRanks)});
    }
    all.push_back({launcher.name, std::move(arguments), std::move(by_network)});
  }
  return all;
}

int count_compute(const std::string& schedule, int32_t microbatches) {
  const Schedule built = build_schedule(
      schedule, {kStepRanks, microbatches, get_schedule_kind(schedule).default_stages_per_rank});
  const auto list = built.actions(Rank(0));
  return static_cast<int>(std::count_if(
      list.begin(), list.end(), [](const Action& action) { return is_compute(action.type()); }));
}

/// The file for a drawing of the last step that hides its transfers.
class Timeline {
 public:
  Timeline(const Suite& suite, std::string transport) {
    std::replace(transport.begin(), transport.end(), ' ', '_');
    std::filesystem::create_directories(suite.folder());
    setenv(kTimelineVariable, (suite.folder() + "/overlap_" + transport + ".svg").c_str(), 1);
  }
  ~Timeline() { unsetenv(kTimelineVariable); }
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;
};

std::string overlap_row(const std::string& name) {
  return fmt::format("GPipe, transfers of 8 MB as long as compute, {}: step by compute alone",
                     name);
}

void report_overlap(Suite& suite, const std::string& name, PythonReference& ranks) {
  const std::string row = overlap_row(name);
  if (!suite.wants(row)) return;
  std::vector<double> ratios;
  const Timed run = ranks.run("overlap");
  // Warm up, until all memory is allocated.
  for (int i = 0; i < 4; ++i) run(1);
  for (int i = 0; i < std::max(2, suite.rounds()); ++i) ratios.push_back(run(1));
  suite.report({row, summarise(ratios).seconds, "x", 1.1, half_quartile_distance(ratios)});
}

/// On one machine the processors carry out transfers. Over a link with limited speed they are as
/// free as between machines.
void report_overlap_on_link(Suite& suite, const Contender& contender,
                            std::vector<std::string> arguments) {
  const int megabits = suite.quick() ? kLinkMegabitsQuick : kLinkMegabits;
  arguments.insert(arguments.end(), {"link", std::to_string(megabits)});
  arguments.insert(arguments.end(), contender.by_network.begin(), contender.by_network.end());
  const auto name = fmt::format("{}, link of {} Gbit/s", contender.name, megabits / 1000.0);
  if (!suite.wants(overlap_row(name))) return;
  const Timeline timeline(suite, contender.name + " link");
  try {
    PythonReference ranks("step_ranks.py", arguments);
    report_overlap(suite, name, ranks);
  } catch (const Error& error) {
    std::printf("%s over a link: not measured: %s\n", contender.name.c_str(), error.what());
  }
}

/// 1F1B while every core also runs a different program, as on real machines. A rank that sleeps
/// then gets its core back late, and a rank that polls uses up its share of the core.
void compare_on_busy_cores(Suite& suite, PythonReference& ranks, PythonReference& python,
                           int32_t microbatches) {
  for (const int64_t hidden : {kTiny, suite.quick() ? kTiny * 2 : kReal}) {
    const bool is_action = hidden == kTiny;
    const std::string row = fmt::format("1F1B, hidden {}, {} over gloo, busy cores", hidden,
                                        is_action ? "an action" : "a step");
    if (!suite.wants(row)) continue;
    const std::string name = fmt::format("1F1B/{}", hidden);
    Reference pytorch{.name = "PyTorch on gloo", .run = python.run(name)};
    if (!is_action) pytorch.goal = 0.8;
    pytorch.informative = is_action;
    const BusyCores load;
    suite.compare(row, ranks.run(name), {pytorch},
                  is_action ? count_compute("1F1B", microbatches) : 1);
  }
}

}  // namespace

int run_step_worker(int argc, char** argv) {
  const int32_t microbatches = argc > 2 ? std::atoi(argv[2]) : 4;
  try {
    at::set_num_threads(1);
    if (const char* const rank = std::getenv("RANK")) pin(Rank(std::atoi(rank)));
    World world = World::from_environment({.local_ranks = kStepRanks});
    world.run([&](Transport& transport) {
      if (world.is_local()) {
        at::get_num_threads();
        at::set_num_threads(1);
        pin(transport.rank());
      }
      serve(transport, microbatches);
    });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}

void compare_steps(Suite& suite) {
  const int32_t microbatches = suite.quick() ? 4 : 32;
  PythonReference python(
      "vs_pytorch_ranks.py",
      {"vs_pytorch_worker.py", std::to_string(microbatches), std::to_string(kBatch)});
  for (const Contender& contender : contenders()) {
    const std::vector<std::string> program = {own_path(), kStepWorker, std::to_string(microbatches),
                                              "--"};
    std::vector<std::string> arguments = program;
    arguments.insert(arguments.end(), contender.arguments.begin(), contender.arguments.end());
    std::optional<Timeline> timeline(std::in_place, suite, contender.name);
    PythonReference ranks("step_ranks.py", arguments);
    for (const std::string schedule : {"1F1B", "Interleaved1F1B", "ZBVZeroBubble"}) {
      for (const int64_t hidden : {kTiny, suite.quick() ? kTiny * 2 : kReal}) {
        const std::string name = fmt::format("{}/{}", schedule, hidden);
        Reference pytorch{.name = "PyTorch on gloo", .run = python.run(name)};
        const bool has_goal = contender.name == "gloo" && hidden == kTiny;
        if (has_goal) pytorch.goal = 0.5;
        pytorch.informative = !has_goal;
        const bool is_action = hidden == kTiny;
        suite.compare(fmt::format("{}, hidden {}, {} over {}", schedule, hidden,
                                  is_action ? "an action" : "a step", contender.name),
                      ranks.run(name), {pytorch},
                      is_action ? count_compute(schedule, microbatches) : 1);
      }
    }
    if (contender.name == "gloo") compare_on_busy_cores(suite, ranks, python, microbatches);
    if (contender.by_network.empty()) continue;
    report_overlap(suite, contender.name, ranks);
    timeline.reset();
    report_overlap_on_link(suite, contender, program);
  }
}

}  // namespace stagecraft::bench
