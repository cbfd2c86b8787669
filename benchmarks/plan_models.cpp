#include "benchmarks/plan_models.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include "benchmarks/plan_ranks.h"
#include "benchmarks/plan_subjects.h"
#include "benchmarks/python_reference.h"
#include "stagecraft/plan/evaluate_schedule.h"
#include "stagecraft/runtime/measure_run.h"
#include "stagecraft/runtime/pipeline.h"
#include "stagecraft/runtime/planned_pipeline.h"
#include "stagecraft/schedule/builders/builders.h"

namespace stagecraft::bench {
namespace {

constexpr int32_t kPlanRanks = 2;
constexpr int32_t kPlanMicrobatches = 8;

/// A pipeline whose steps are timed.
class TimedRun {
 public:
  TimedRun(const Pipe& pipe, const Schedule& schedule, const std::vector<bool>& recompute,
           const PlanSubject& subject)
      : subject_(&subject),
        run_(std::make_unique<Pipeline>(pipe,
                                        PipelineOptions{.source = ScheduleSource::fixed(schedule),
                                                        .loss = subject.model.loss,
                                                        .seed = 1,
                                                        .threads_per_rank = 1})) {
    for (std::size_t s = 0; s < recompute.size(); ++s) {
      if (recompute[s]) run_->stage(StageId(static_cast<int32_t>(s))).set_recompute(true);
    }
  }

  /// Runs a step and returns its milliseconds.
  double step() {
    Microbatches batch = subject_->model.batch;
    const auto begin = std::chrono::steady_clock::now();
    StepResult result = run_->step(std::move(batch), {.outputs = OutputMode::kNone});
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    losses_ = std::move(result.losses);
    return took.count();
  }

  const std::vector<at::Tensor>& losses() const { return losses_; }

 private:
  const PlanSubject* subject_;
  std::unique_ptr<Pipeline> run_;
  std::vector<at::Tensor> losses_;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::vector<bool> no_recompute(int32_t stages) {
  return std::vector<bool>(static_cast<std::size_t>(stages), false);
}

/// The fastest built-in schedule for the split of the cost policy, among those that these sizes
/// allow.
TimedRun best_built_in(const PlanSubject& subject, std::string& name) {
  std::unique_ptr<TimedRun> best;
  double least = 0;
  for (const ScheduleKind& kind : schedule_kinds()) {
    const Dims dims{kPlanRanks, kind.default_stages_per_rank, kPlanMicrobatches};
    if (!kind.has_backward || !kind.takes(dims)) continue;
    const Schedule schedule = kind.make(dims);
    const Pipe pipe = subject.cut({.policy = equal_cost(schedule.num_stages())});
    TimedRun run(pipe, schedule, no_recompute(schedule.num_stages()), subject);
    run.step();
    const double time = std::min(run.step(), run.step());
    if (best && time >= least) continue;
    least = time;
    best = std::make_unique<TimedRun>(std::move(run));
    name = kind.name;
  }
  return std::move(*best);
}

MeasuredPlanOptions plan_options(const Suite& suite) {
  MeasuredPlanOptions options;
  options.search.time_limit = std::chrono::milliseconds(suite.quick() ? 100 : 3000);
  if (suite.quick()) {
    options.measure.warm_up = 1;
    options.measure.steps = 1;
  }
  return options;
}

TimedRun planned_run(const PlanSubject& subject, const SavedPlan& plan) {
  return {subject.model.split(plan.model.split_points), plan.schedule, plan.choice.recompute,
          subject};
}

/// The median times of the steps of several runs, measured in turns.
std::vector<double> time_in_turns(std::vector<TimedRun*> runs, int rounds) {
  std::vector<std::vector<double>> times(runs.size());
  for (int round = -2; round < rounds; ++round) {
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const std::size_t at = round % 2 == 0 ? i : runs.size() - 1 - i;
      const double time = runs[at]->step();
      if (round >= 0) times[at].push_back(time);
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& each : times) medians.push_back(median(std::move(each)));
  return medians;
}

double count_different(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double different = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) different += !a[i].equal(b[i]);
  return different;
}

double error_percent(double predicted, double measured) {
  return 100 * std::abs(predicted / measured - 1);
}

void report_times(Suite& suite, const PlanSubject& subject, const SavedPlan& plan) {
  const std::vector<int32_t> begins = equal_layers(subject, kPlanRanks);
  const Schedule schedule = build_schedule("1F1B", {kPlanRanks, kPlanMicrobatches, 1});
  PlanChoice equal{.stages_per_rank = 1, .begins = begins, .recompute = no_recompute(kPlanRanks)};
  const double equal_predicted =
      evaluate_schedule(StageComposer(plan.problem), equal, schedule).makespan;
  TimedRun planned = planned_run(subject, plan);
  TimedRun plain(cut_at(subject, begins), schedule, equal.recompute, subject);
  std::string best_name;
  TimedRun built_in = best_built_in(subject, best_name);
  const std::vector<double> times =
      time_in_turns({&planned, &plain, &built_in}, suite.quick() ? 1 : 15);
  suite.report(
      {fmt::format("{}: planned ({}, {} stages) {:.1f} ms, predicted {:.1f}, off by", subject.name,
                   plan.schedule_name, plan.choice.num_stages(), times[0], plan.predicted),
       error_percent(plan.predicted, times[0]), "%", 5.0});
  suite.report({fmt::format("{}: equal layers + 1F1B {:.1f} ms, predicted {:.1f}, off by",
                            subject.name, times[1], equal_predicted),
                error_percent(equal_predicted, times[1]), "%", 5.0});
  suite.report({subject.name + ": planned by equal layers + 1F1B", times[0] / times[1], "x", .85});
  suite.report({fmt::format("{}: planned by cost policy + {} ({:.1f} ms)", subject.name, best_name,
                            times[2]),
                times[0] / times[2], "x", 1.0});
  suite.report({subject.name + ": losses that differ from those of 1F1B",
                count_different(planned.losses(), plain.losses()), "", 0.0});
}

/// The peaks that the meter measured, plus parameters, gradients and the optimizer's state.
std::vector<double> measured_peaks(const PlanSubject& subject, const SavedPlan& plan) {
  return measure_run(subject.model.split(plan.model.split_points), plan.schedule,
                     plan.choice.recompute, subject.model.loss, subject.model.batch,
                     {.warm_up = 1, .steps = 1})
      .peaks;
}

void report_memory(Suite& suite, const PlanSubject& subject, const SavedPlan& plan,
                   const std::string& what) {
  const std::vector<double> peaks = measured_peaks(subject, plan);
  double worst = 0;
  double over = 0;
  for (std::size_t r = 0; r < peaks.size(); ++r) {
    worst = std::max(worst, error_percent(plan.peaks[r], peaks[r]));
    const auto& memory = plan.problem.ranks[r].memory;
    if (memory) over = std::max(over, peaks[r] / *memory);
  }
  suite.report(
      {fmt::format("{}{}: peak of a rank, predicted against the meter", subject.name, what), worst,
       "%", 10.0});
  if (over > 0) {
    suite.report({fmt::format("{}{}: peak by the limit", subject.name, what), over, "x", 1.0});
  }
}

/// Plans again with less memory. The run must stay within it, and the losses must be the same.
void report_limit(Suite& suite, const PlanSubject& subject, double memory, const std::string& what,
                  const std::vector<at::Tensor>& losses) {
  PlanProblem problem = problem_for(kPlanRanks, kPlanMicrobatches);
  for (PlanRank& rank : problem.ranks) rank.memory = memory;
  const SavedPlan plan = plan_measured(subject.model, problem, plan_options(suite)).saved;
  report_memory(suite, subject, plan, what);
  TimedRun run = planned_run(subject, plan);
  const double time = time_in_turns({&run}, suite.quick() ? 1 : 9).front();
  suite.report({fmt::format("{}{}: {:.1f} ms, predicted {:.1f}, off by", subject.name, what, time,
                            plan.predicted),
                error_percent(plan.predicted, time), "%", 5.0});
  suite.report({subject.name + what + ": losses that differ", count_different(run.losses(), losses),
                "", 0.0});
}

/// The memory of each rank with 10 % less than the fullest rank needs, or with half of the memory
/// of the activations.
struct LessMemory {
  double tenth = 0;
  double half = 0;
};
LessMemory less_memory(const SavedPlan& plan) {
  const StageComposer composer(plan.problem);
  const ScheduleProblem stages = composer.compose(plan.choice);
  LessMemory less;
  for (std::size_t r = 0; r < plan.peaks.size(); ++r) {
    const double fixed = stages.ranks[r].fixed;
    less.tenth = std::max(less.tenth, .9 * plan.peaks[r]);
    less.half = std::max(less.half, fixed + (plan.peaks[r] - fixed) / 2);
  }
  return less;
}

void measure_subject(Suite& suite, const PlanSubject& subject) {
  const std::string times = subject.name + ": times";
  const std::string tenth = subject.name + ", 10 % less memory";
  const std::string half = subject.name + ", half of the activations";
  if (!suite.wants(times) && !suite.wants(tenth) && !suite.wants(half)) return;
  const MeasuredPlan planned =
      plan_measured(subject.model, problem_for(kPlanRanks, kPlanMicrobatches), plan_options(suite));
  const SavedPlan& plan = planned.saved;
  if (suite.wants(times)) {
    for (std::size_t i = 0; i < planned.trials.size(); ++i) {
      suite.report({fmt::format("{}: plan {} predicted {:.1f} ms, its first run", subject.name,
                                i + 1, planned.trials[i].predicted),
                    planned.trials[i].measured, "ms"});
    }
    report_times(suite, subject, plan);
    report_memory(suite, subject, plan, "");
  }
  if (suite.quick()) return;
  TimedRun plain = planned_run(subject, plan);
  plain.step();
  const LessMemory less = less_memory(plan);
  if (suite.wants(tenth)) {
    report_limit(suite, subject, less.tenth, ", 10 % less memory", plain.losses());
  }
  if (suite.wants(half)) {
    report_limit(suite, subject, less.half, ", half of the activations", plain.losses());
  }
}

}  // namespace

void measure_models(Suite& suite) {
  const std::string llama = "LLaMA";
  const std::string processes = "four gloo processes, LLaMA";
  at::set_num_threads(1);
  const bool is_small = suite.quick();
  const bool wants_llama = suite.wants(llama + ": times") ||
                           suite.wants(llama + ", 10 % less memory") ||
                           suite.wants(llama + ", half of the activations");
  if (wants_llama || suite.wants(processes)) {
    const auto folder = std::filesystem::temp_directory_path() / fmt::format("plan-{}", ::getpid());
    const std::string model = is_small ? "llama_tiny" : "llama_plan";
    {
      PythonReference python("exported_pytorch.py", {folder.string(), model});
      python.run("ready")(1);
    }
    const std::string path = (folder / (model + ".pt2")).string();
    if (wants_llama) {
      measure_subject(suite,
                      exported_subject(llama, path, is_small ? 97 : 8192, kPlanMicrobatches));
    }
    if (!is_small && suite.wants(processes)) measure_processes(suite, processes, path);
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  }
  measure_subject(suite, wide_gpt_subject(is_small, kPlanMicrobatches));
}

}  // namespace stagecraft::bench
