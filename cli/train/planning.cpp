#include "cli/train/planning.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/failure.h"
#include "cli/output.h"
#include "cli/plan_search.h"
#include "cli/train/interrupt.h"
#include "cli/train/model.h"
#include "cli/train/options.h"
#include "stagecraft/base/thread_name.h"
#include "stagecraft/base/write_file.h"
#include "stagecraft/plan/plan_file.h"
#include "stagecraft/plan/plan_text.h"
#include "stagecraft/plan/synthesise.h"
#include "stagecraft/runtime/measure_layers.h"

namespace stagecraft::cli {
namespace {

/// Ctrl-C ends the search for a plan: a thread looks for the signal that the program noted.
class PlanInterrupt {
 public:
  PlanInterrupt()
      : watcher_([this](const std::stop_token& stop) {
          detail::name_thread("sc plan");
          while (!stop.stop_requested() && !cancel_.load()) {
            if (noted_interrupt() != 0) cancel_.store(true);
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
          }
        }) {}

  const std::atomic<bool>* flag() const { return &cancel_; }

 private:
  std::atomic<bool> cancel_ = false;
  std::jthread watcher_;
};

/// A batch of the command in microbatches.
Microbatches make_batch(const TrainCommand& command, const TrainingData& data, const Task& task) {
  NamedTensors rows = data.training(command, 0)->draw(command.batch / command.accumulate);
  const std::vector<at::Tensor> parameters = task.pipe.parameters();
  for (auto& [name, tensor] : rows) {
    if (!parameters.empty()) tensor = tensor.to(parameters.front().device());
  }
  const Arguments arguments = task.arguments(rows);
  return split_batch(arguments.args, arguments.kwargs, task.target(rows),
                     {.microbatches = command.microbatches});
}

struct MeasuredModel {
  std::vector<std::string> names;  // of all layers but the first
  std::vector<PlanLayer> layers;
  std::string graph;  // checksum
};

/// The model split at these modules, before there is a plan.
Task task_split_at(TrainCommand& command, const TrainingData& data,
                   const std::vector<std::string>& names) {
  command.planned = nullptr;
  command.schedule = "1F1B";
  command.split = fmt::format("{}", fmt::join(names, ","));
  command.stages = std::nullopt;
  return make_task(command, data);
}

std::vector<PlanLayer> measure(TrainCommand command, const TrainingData& data,
                               const std::vector<std::string>& names, bool threads) {
  const Task task = task_split_at(command, data, names);
  return measure_layers(task.pipe, task.loss, make_batch(command, data, task), names,
                        {.ranks = threads ? command.ranks : 1,
                         .warm_up = 2,
                         .steps = command.plan_steps,
                         .threads_per_rank = command.threads});
}

PlanProblem problem_of(const TrainCommand& command, std::vector<PlanLayer> layers) {
  PlanProblem problem;
  problem.layers = std::move(layers);
  problem.ranks = same_ranks(command.ranks);
  problem.microbatches = command.microbatches;
  problem.input_gradient = false;
  problem.units = {"ms", true};
  if (command.memory) {
    bool bytes = true;
    const std::vector<double> memory = parse_memory("--memory", *command.memory, bytes);
    if (memory.size() != 1 && memory.size() != problem.ranks.size()) {
      throw BadUsage(fmt::format("--memory has {} amounts for {} ranks: give one, or one for each",
                                 memory.size(), problem.ranks.size()));
    }
    for (std::size_t r = 0; r < problem.ranks.size(); ++r) {
      problem.ranks[r].memory = memory[memory.size() == 1 ? 0 : r];
    }
  }
  return problem;
}

/// The plan's stages measured as they will run, and the order synthesised again with those costs.
SavedPlan replan(const TrainCommand& command, const Plan& plan, const PlannedModel& model,
                 std::vector<PlanLayer> stages, const std::atomic<bool>* cancel) {
  PlanProblem problem = problem_of(command, std::move(stages));
  PlanChoice choice = plan.best.choice;
  for (std::size_t s = 0; s < choice.begins.size(); ++s) {
    choice.begins[s] = static_cast<int32_t>(s);
  }
  const StageComposer composer(problem);
  SavedPlan saved = to_saved(plan, model);
  saved.problem = problem;
  saved.choice = choice;
  Evaluation best = evaluate_schedule(composer, choice, saved.schedule);
  PlanChoice apart = choice;
  apart.whole_backward = false;
  SynthesisOptions how;
  how.time_limit = std::chrono::seconds(1);
  how.seed = plan.seed;
  how.cancel = cancel;
  const Synthesis found = synthesise(composer.compose(apart), how);
  saved.bound = found.bound.value;
  if (found.schedule) {
    const Evaluation again = evaluate_schedule(composer, apart, *found.schedule);
    // A schedule without a name of its own must be clearly better, as in the first plan.
    const double needed = plan.best.built_in ? 0.995 : 1;
    if (again.fits && (!best.fits || again.makespan < needed * best.makespan)) {
      best = again;
      saved.choice = apart;
      saved.schedule = *found.schedule;
      saved.schedule_name = "synthesised";
    }
  }
  saved.predicted = best.makespan;
  saved.peaks = best.peaks;
  saved.any_split_bound = std::min(saved.any_split_bound, saved.predicted);
  return saved;
}

SavedPlan plan_here(const TrainCommand& command, const TrainingData& data,
                    const MeasuredModel& measured, bool threads, bool prints) {
  const PlanInterrupt interrupt;
  PlanOptions options;
  options.cancel = interrupt.flag();
  options.time_limit = parse_time_limit("--plan-time", command.plan_time);
  options.seed = static_cast<uint64_t>(command.seed);
  const PlanProblem problem = problem_of(command, measured.layers);
  const Plan plan = [&] {
    try {
      return make_plan(problem, options);
    } catch (const DoesNotFit& error) {
      throw BadUsage(fmt::format("--plan auto: {}", error.what()));
    }
  }();
  if (prints) write_output("-", to_text(plan) + '\n');
  PlannedModel model{.graph = measured.graph};
  for (std::size_t s = 1; s < plan.best.choice.begins.size(); ++s) {
    const auto layer = static_cast<std::size_t>(plan.best.choice.begins[s]);
    model.split_points.push_back(measured.names[layer - 1]);
  }
  return replan(command, plan, model, measure(command, data, model.split_points, threads),
                interrupt.flag());
}

/// Rank 0's text on every rank. The others may have to wait for the whole search.
std::string share(std::string text, Transport* transport) {
  if (transport == nullptr) return text;
  const c10::IValue value = transport->broadcast(c10::IValue(std::move(text)), Rank(0),
                                                 Deadline::after(std::chrono::hours(1)));
  return value.toStringRef();
}

void apply(TrainCommand& command, SavedPlan plan) {
  if (plan.model.split_points.size() + 1 != plan.choice.begins.size()) {
    throw BadUsage("--plan: the plan was made without a model: its stages have no split points");
  }
  command.split = fmt::format("{}", fmt::join(plan.model.split_points, ","));
  command.schedule = plan.schedule_name;
  std::vector<std::string> recompute;
  for (std::size_t s = 0; s < plan.choice.recompute.size(); ++s) {
    if (plan.choice.recompute[s]) recompute.push_back(std::to_string(s));
  }
  command.recompute = fmt::format("{}", fmt::join(recompute, ","));
  command.planned = std::make_shared<const SavedPlan>(std::move(plan));
}

}  // namespace

void take_plan_file(TrainCommand& command) {
  if (command.plan.empty() || command.plan == "auto") return;
  SavedPlan plan = read_plan_file(command.plan);
  const auto must_be = [&](const char* option, int32_t& value, int32_t planned) {
    if (command.given.contains(option) && value != planned) {
      throw BadUsage(fmt::format("{} {} does not fit {}, which is a plan for {}", option, value,
                                 command.plan, planned));
    }
    value = planned;
  };
  command.given["--plan"] = {std::filesystem::absolute(command.plan).string()};
  must_be("--ranks", command.ranks, plan.num_ranks());
  must_be("--microbatches", command.microbatches, plan.problem.microbatches);
  apply(command, std::move(plan));
  check_train_command(command);
}

void make_train_plan(TrainCommand& command, const TrainingData& data, Transport* transport) {
  if (command.plan != "auto") return;
  if (command.replicas > 1) throw BadUsage("--plan auto plans one pipeline, without --replicas");
  const bool first = transport == nullptr || transport->rank() == Rank(0);
  const bool threads = transport == nullptr;
  MeasuredModel measured;
  {
    TrainCommand unsplit = command;
    const Task whole = task_split_at(unsplit, data, {});
    measured.names = layer_names(whole.pipe.graph());
    measured.graph = graph_of(whole.pipe);
  }
  if (measured.names.size() + 1 < static_cast<std::size_t>(command.ranks)) {
    throw BadUsage(fmt::format("--plan auto: the model has {} layers for {} ranks",
                               measured.names.size() + 1, command.ranks));
  }
  // All ranks measure at the same time, as they will compute.
  measured.layers = measure(command, data, measured.names, threads);
  std::string text;
  std::string failure;
  if (first) {
    try {
      text = to_plan_file(
          plan_here(command, data, measured, threads, !command.is_quiet && !command.is_json));
    } catch (const Error& error) {
      failure = error.what();  // the other ranks wait for an answer
    }
  }
  text = share(std::move(text), transport);
  if (text.empty()) throw BadUsage(failure.empty() ? "--plan auto: rank 0 found no plan" : failure);
  if (first && !command.plan_out.empty()) write_file(command.plan_out, text);
  apply(command, parse_plan_file(text));
}

std::string compare_with_plan(const SavedPlan& plan, double measured_milliseconds) {
  return fmt::format("plan: predicted {:.1f} ms a step, measured {:.1f} ms ({:+.1f} %)",
                     plan.predicted, measured_milliseconds,
                     100 * (measured_milliseconds / plan.predicted - 1));
}

}  // namespace stagecraft::cli
