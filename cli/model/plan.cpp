#include "cli/model/plan.h"

#include <cstddef>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ops/add.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include "cli/failure.h"
#include "cli/model/facts.h"
#include "cli/output.h"
#include "cli/plan_search.h"
#include "stagecraft/graph/run/input_binding.h"
#include "stagecraft/partition/pipe.h"
#include "stagecraft/plan/plan_file.h"
#include "stagecraft/plan/plan_text.h"
#include "stagecraft/runtime/measure_layers.h"
#include "stagecraft/runtime/measured_plan.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft::cli {
namespace {

/// Inputs of the example's sizes: random numbers, token 0, masks that keep all.
Arguments example_arguments(const Graph& graph) {
  const std::vector<int64_t> sizes = example_sizes(graph);
  std::vector<c10::IValue> leaves;
  for (const Argument& input : graph.parts().inputs) {
    const ValueId* value = input.value();
    if (value == nullptr) {
      const c10::IValue* fixed = input.fixed_value();
      if (fixed == nullptr) {
        throw BadUsage(
            "--measure: the model takes a number that may vary; measure it in a program");
      }
      leaves.push_back(*fixed);
      continue;
    }
    const GraphValue& info = graph.value(*value);
    std::vector<int64_t> shape;
    for (const SizeExpr& size : info.shape) shape.push_back(size.at(sizes));
    const at::TensorOptions options(info.dtype);
    leaves.emplace_back(info.dtype == at::kBool          ? at::ones(shape, options)
                        : at::isFloatingType(info.dtype) ? at::randn(shape, options)
                                                         : at::zeros(shape, options));
  }
  return arguments_of_leaves(graph, std::move(leaves));
}

/// A number that depends on all outputs. Its backward costs as much as that of a loss.
at::Tensor mean_of_outputs(const c10::IValue& output) {
  at::Tensor sum;
  for (const c10::IValue& leaf : tree::flatten(output).leaves) {
    if (!leaf.isTensor() || !leaf.toTensor().is_floating_point()) continue;
    const at::Tensor mean = leaf.toTensor().mean();
    sum = sum.defined() ? at::add(sum, mean) : mean;
  }
  if (!sum.defined()) throw BadUsage("--measure: no output of the model has a gradient");
  return sum;
}

/// A plan from costs that are measured on inputs of the example's sizes.
MeasuredPlan plan_by_measuring(const Graph& graph, const std::vector<std::string>& names,
                               const PlanProblem& problem, const PlanOptions& search) {
  ModelToPlan model;
  model.layers = names;
  model.split = [&](const std::vector<std::string>& points) {
    Split split;
    for (const std::string& name : points) split.points.emplace_back(name, SplitPoint::kBeginning);
    if (points.empty()) split.policy = [](const Graph&) { return SplitPositions(); };
    return Pipe(graph, split, {.by_default = SharedParameter::kTransmit});
  };
  model.batch.inputs.push_back(example_arguments(graph));
  model.loss = Loss([](const c10::IValue& output, const c10::IValue&, const Kwargs&) {
    return c10::IValue(mean_of_outputs(output));
  });
  return plan_measured(model, problem, {.search = search});
}

PlanProblem problem_of(const ModelCommand& command) {
  PlanProblem problem;
  problem.input_gradient = false;
  problem.units = {command.is_measured ? "ms" : "", true};
  problem.microbatches = command.microbatches;
  problem.ranks = same_ranks(command.ranks.value_or(2));
  bool bytes = true;
  if (command.memory) set_memory(problem.ranks, *command.memory, bytes);
  return problem;
}

void write_costs(const ModelCommand& command, const PlanProblem& problem) {
  if (!command.costs_out) return;
  LayerFile file;
  file.layers = problem.layers;
  file.link = problem.link;
  file.input_gradient = problem.input_gradient;
  file.units = problem.units;
  write_output(*command.costs_out, to_layer_file(file));
}

void write_plan(const ModelCommand& command, const SavedPlan& plan) {
  if (command.plan_out) write_output(*command.plan_out, to_plan_file(plan));
}

std::string split_line(const std::vector<std::string>& points) {
  return points.empty() ? "" : fmt::format("Split: {}\n", fmt::join(points, ","));
}

}  // namespace

std::string plan_model(const Graph& graph, const ModelCommand& command) {
  const std::vector<std::string> names = layer_names(graph);
  PlanProblem problem = problem_of(command);
  PlanOptions options;
  options.time_limit = parse_time_limit("--time-limit", command.time_limit);
  if (command.is_measured) {
    const MeasuredPlan planned = plan_by_measuring(graph, names, problem, options);
    write_costs(command, planned.saved.problem);
    write_plan(command, planned.saved);
    return "Measured on this machine, on inputs of the example's sizes.\n" +
           to_text(*planned.search) +
           fmt::format(
               "Run on this machine: {:.4g} ms a step, {:.4g} with the costs of the stages "
               "of the plan, {}.\n",
               planned.trials.back().measured, planned.saved.predicted,
               planned.saved.schedule_name) +
           split_line(planned.saved.model.split_points);
  }
  problem.layers = estimate_layers(graph, names);
  write_costs(command, problem);
  const Plan plan = make_plan(problem, options);
  write_plan(command, to_saved(plan, {.split_points = plan.boundary_names()}));
  return "From FLOP and bytes at the example's sizes: nothing was run. Times are in millions of "
         "operations, I and W as much as F.\n" +
         to_text(plan) + split_line(plan.boundary_names());
}

}  // namespace stagecraft::cli
