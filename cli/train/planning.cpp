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
#include "cli/lowering_options.h"
#include "cli/output.h"
#include "cli/plan_search.h"
#include "cli/train/interrupt.h"
#include "cli/train/model.h"
#include "cli/train/options.h"
#include "stagecraft/base/thread_name.h"
#include "stagecraft/base/write_file.h"
#include "stagecraft/plan/plan_file.h"
#include "stagecraft/plan/plan_text.h"
#include "stagecraft/runtime/measured_plan.h"

namespace stagecraft::cli {
namespace {

/// Ctrl-C ends the search for a plan: a thread polls for the signal that the program noted.
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
  NamedTensors rows =
      data.training(command, 0)->draw(command.batch / command.accumulate / command.replicas);
  const std::vector<at::Tensor> parameters = task.pipe.parameters();
  for (auto& [name, tensor] : rows) {
    if (!parameters.empty()) tensor = tensor.to(parameters.front().device());
  }
  const Arguments arguments = task.arguments(rows);
  return split_batch(arguments.args, arguments.kwargs, task.target(rows),
                     {.microbatches = command.microbatches});
}

/// The model, split at these modules, before a plan exists.
Task task_split_at(TrainCommand& command, const TrainingData& data,
                   const std::vector<std::string>& names) {
  command.planned = nullptr;
  command.schedule = "1F1B";
  command.split = fmt::format("{}", fmt::join(names, ","));
  command.stages = std::nullopt;
  return make_task(command, data);
}

PlanProblem problem_of(const TrainCommand& command) {
  PlanProblem problem;
  problem.ranks = same_ranks(command.ranks);
  problem.microbatches = command.microbatches;
  problem.input_gradient = false;
  problem.units = {"ms", true};
  problem.sharding = {.replicas = command.replicas, .kind = find_shard_kind(command.shard).value()};
  if (problem.sharding.has_gathers()) {
    if (command.given.contains("--max-active-stages")) {
      problem.sharding.max_active_stages = command.lowering.max_active_stages;
    }
    // kLeastLookahead is not passed on: the planner uses the smallest lookahead that costs no time
    // anyway.
    if (command.lookahead && command.lookahead != kLeastLookahead) {
      problem.sharding.lookahead =
          parse_lookahead(*command.lookahead, command.ranks, command.lowering.max_active_stages);
    }
  }
  bool bytes = true;
  if (command.memory) set_memory(problem.ranks, *command.memory, bytes);
  return problem;
}

/// The table, and how the prediction compares with steps of the plan.
std::string describe(const MeasuredPlan& planned) {
  std::string text = planned.search ? to_text(*planned.search) : std::string();
  for (const MeasuredPlan::Trial& trial : planned.trials) {
    text += fmt::format("A plan was run: predicted {:.1f} ms a step, measured {:.1f} ms.\n",
                        trial.predicted, trial.measured);
  }
  text += fmt::format("Taken: {} stages, {}, {:.1f} ms a step with the costs of its {}.\n",
                      planned.saved.choice.num_stages(), planned.saved.schedule_name,
                      planned.saved.predicted, planned.trials.empty() ? "layers" : "stages");
  return text;
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
  const PlanSharding& sharding = plan.problem.sharding;
  if (sharding.replicas > 1) {
    const std::string kind(to_string(sharding.kind));
    must_be("--replicas", command.replicas, sharding.replicas);
    if (command.given.contains("--shard") && command.shard != kind) {
      throw BadUsage(fmt::format("--shard {} does not fit {}, which is a plan for {}",
                                 command.shard, command.plan, kind));
    }
    command.shard = kind;
    if (sharding.has_gathers()) {
      must_be("--max-active-stages", command.lowering.max_active_stages, plan.choice.most_active());
    }
  }
  apply(command, std::move(plan));
  check_train_command(command);
}

void take_planned_replicas(TrainCommand& command) {
  if (command.plan.empty() || command.plan == "auto" || command.given.contains("--replicas"))
    return;
  const int32_t replicas = read_plan_file(command.plan).problem.sharding.replicas;
  if (replicas == 1) return;
  command.replicas = replicas;
  command.given["--replicas"] = {std::to_string(replicas)};
}

void make_train_plan(TrainCommand& command, const TrainingData& data, Transport* transport) {
  if (command.plan != "auto") return;
  const bool first = transport == nullptr || transport->rank() == Rank(0);
  ModelToPlan model;
  model.split = [&](const std::vector<std::string>& names) {
    TrainCommand own = command;
    return task_split_at(own, data, names).pipe;
  };
  {
    TrainCommand unsplit = command;
    const Task whole = task_split_at(unsplit, data, {});
    model.layers = layer_names(whole.pipe.graph());
    model.graph = graph_of(whole.pipe);
    model.loss = whole.loss;
    model.batch = make_batch(unsplit, data, whole);
  }
  if (model.layers.size() + 1 < static_cast<std::size_t>(command.ranks)) {
    throw BadUsage(fmt::format("--plan auto: the model has {} layers for {} ranks",
                               model.layers.size() + 1, command.ranks));
  }
  const PlanInterrupt interrupt;
  MeasuredPlanOptions options;
  options.search.cancel = interrupt.flag();
  options.search.time_limit = parse_time_limit("--plan-time", command.plan_time);
  options.search.seed = static_cast<uint64_t>(command.seed);
  options.measure.steps = command.plan_steps;
  options.measure.threads_per_rank = command.threads;
  options.transport = transport;
  try {
    MeasuredPlan planned = plan_measured(model, problem_of(command), options);
    if (first && !command.is_quiet && !command.is_json) write_output("-", describe(planned) + '\n');
    if (first && !command.plan_out.empty()) {
      write_file(command.plan_out, to_plan_file(planned.saved));
    }
    apply(command, std::move(planned.saved));
  } catch (const DoesNotFit& error) {
    throw BadUsage(fmt::format("--plan auto: {}", error.what()));
  }
}

std::string compare_with_plan(const SavedPlan& plan, double measured_milliseconds) {
  return fmt::format("plan: predicted {:.1f} ms a step, measured {:.1f} ms ({:+.1f} %)",
                     plan.predicted, measured_milliseconds,
                     100 * (measured_milliseconds / plan.predicted - 1));
}

}  // namespace stagecraft::cli
