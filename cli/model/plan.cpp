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

/// Any number that depends on all outputs: its backward costs what that of a loss costs.
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

std::vector<PlanLayer> measure_model(const Graph& graph, const std::vector<std::string>& names,
                                     const ModelCommand& command) {
  Split split;
  for (const std::string& name : names) split.points.emplace_back(name, SplitPoint::kBeginning);
  if (names.empty()) split.policy = [](const Graph&) { return SplitPositions(); };
  const Pipe pipe(graph, split, {.by_default = SharedParameter::kTransmit});
  Microbatches batch;
  batch.inputs.push_back(example_arguments(graph));
  const Loss loss([](const c10::IValue& output, const c10::IValue&, const Kwargs&) {
    return c10::IValue(mean_of_outputs(output));
  });
  return measure_layers(pipe, loss, batch, names,
                        {.ranks = command.ranks.value_or(1), .warm_up = 1, .steps = 3});
}

}  // namespace

std::string plan_model(const Graph& graph, const ModelCommand& command) {
  const std::vector<std::string> names = layer_names(graph);
  LayerFile file;
  file.layers =
      command.is_measured ? measure_model(graph, names, command) : estimate_layers(graph, names);
  file.input_gradient = false;
  file.units = {command.is_measured ? "ms" : "", true};
  if (command.costs_out) write_output(*command.costs_out, to_layer_file(file));

  PlanProblem problem;
  problem.layers = file.layers;
  problem.input_gradient = false;
  problem.units = file.units;
  problem.microbatches = command.microbatches;
  const int32_t ranks = command.ranks.value_or(2);
  problem.ranks = same_ranks(ranks);
  if (command.memory) {
    bool bytes = true;
    const std::vector<double> memory = parse_memory("--memory", *command.memory, bytes);
    if (memory.size() != 1 && memory.size() != problem.ranks.size()) {
      throw BadUsage(fmt::format("--memory has {} amounts for {} ranks: give one, or one for each",
                                 memory.size(), ranks));
    }
    for (std::size_t r = 0; r < problem.ranks.size(); ++r) {
      problem.ranks[r].memory = memory[memory.size() == 1 ? 0 : r];
    }
  }
  PlanOptions options;
  options.time_limit = parse_time_limit("--time-limit", command.time_limit);
  const Plan plan = make_plan(problem, options);
  std::string text =
      command.is_measured
          ? "Measured on this machine, on inputs of the example's sizes.\n"
          : "From FLOP and bytes at the example's sizes: nothing was run. Times are in millions of "
            "operations, I and W as much as F.\n";
  text += to_text(plan);
  if (plan.best.choice.num_stages() > 1) {
    text += fmt::format("Split: {}\n", fmt::join(plan.boundary_names(), ","));
  }
  if (command.plan_out) {
    PlannedModel model;
    for (const std::string& name : plan.boundary_names()) model.split_points.push_back(name);
    write_output(*command.plan_out, to_plan_file(to_saved(plan, std::move(model))));
  }
  return text;
}

}  // namespace stagecraft::cli
