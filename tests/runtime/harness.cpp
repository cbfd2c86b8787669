#include "tests/runtime/harness.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/linear.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>

#include "stagecraft/stage/callable.h"
#include "stagecraft/stage/random_scope.h"

namespace stagecraft {

at::Tensor random_tensor(const std::vector<int64_t>& sizes, uint64_t seed) {
  const RandomScope random(mix_seed(seed, 1, 2, 3));
  return at::randn(sizes);
}

at::Tensor random_parameter(const std::vector<int64_t>& sizes, uint64_t seed) {
  return random_tensor(sizes, seed).mul_(0.5).requires_grad_(true);
}

Microbatches random_batch(int32_t microbatches, int64_t rows, int64_t width, uint64_t seed) {
  return split_batch({random_tensor({rows, width}, seed)}, {},
                     random_tensor({rows, width}, seed + 1), {.microbatches = microbatches});
}

TestModel chain_model(int32_t stages, int64_t width, uint64_t seed) {
  TestModel model;
  for (int32_t s = 0; s < stages; ++s) {
    const auto own = mix_seed(seed, 0, 0, static_cast<uint64_t>(s));
    const at::Tensor weight = random_parameter({width, width}, own);
    const at::Tensor bias = random_parameter({width}, own + 1);
    model.bodies.push_back(stage_body(
        [weight, bias](const at::Tensor& x) { return at::tanh(at::linear(x, weight, bias)); },
        {{"weight", weight}, {"bias", bias}}));
  }
  model.ports = Ports(stages);
  model.loss = [](const at::Tensor& y, const at::Tensor& target) {
    return at::mse_loss(y, target);
  };
  return model;
}

std::string to_string(const ScheduleCase& schedule) {
  return schedule.name + ", " + std::to_string(schedule.ranks) + " ranks, " +
         std::to_string(schedule.stages_per_rank) + " stages each, " +
         std::to_string(schedule.microbatches) + " microbatches";
}

std::vector<ScheduleCase> training_cases(int32_t ranks) {
  std::vector<ScheduleCase> cases;
  for (const ScheduleKind& kind : schedule_kinds()) {
    if (!kind.has_backward) continue;
    const int32_t l = kind.default_stages_per_rank;
    cases.push_back(
        {std::string(kind.name), ranks, l, std::max(2 * ranks, kind.min_microbatches(ranks, l))});
  }
  return cases;
}

Pipeline make_pipeline(const TestModel& model, PipelineOptions options) {
  options.loss = model.loss;
  options.ports = model.ports;
  options.ties = model.ties;
  if (!options.threads_per_rank) options.threads_per_rank = 1;
  return Pipeline(model.make_stages(), std::move(options));
}

Pipeline make_pipeline(const TestModel& model, const ScheduleCase& schedule,
                       PipelineOptions options) {
  options.source = schedule.source();
  return make_pipeline(model, std::move(options));
}

std::vector<at::Tensor> cut_grads(const TestModel& model, const Microbatches& batch,
                                  const Schedule& schedule, const Draws& draws) {
  take_grads(model.bodies);
  train_cut(model, batch, weight_order(schedule), draws);
  return take_grads(model.bodies);
}

std::string check_step(Pipeline& pipeline, const TestModel& model, const Microbatches& batch,
                       const Draws& draws) {
  take_grads(model.bodies);
  StepResult result = pipeline.step(batch, {.outputs = OutputMode::kEach});
  const std::vector<at::Tensor> grads = take_grads(model.bodies);
  const Trained expected =
      train_cut(model, batch, weight_order(pipeline.recording().schedule), draws);
  const std::vector<at::Tensor> expected_grads = take_grads(model.bodies);
  std::string found = difference(
      {std::move(result.outputs), std::move(result.losses), std::move(result.added_losses)},
      expected);
  return found.empty() ? difference("gradient", grads, expected_grads) : found;
}

std::size_t num_pending(Pipeline& pipeline) {
  std::size_t pending = 0;
  for (StageId s(0); s.value() < pipeline.num_stages(); ++s) {
    pending += pipeline.stage(s).num_pending();
  }
  return pending;
}

std::vector<Stage> stages_on(const TestModel& model, const Placement& placement, Rank rank) {
  std::vector<Stage> own;
  for (Stage& stage : model.make_stages()) {
    if (placement.get_rank(stage.index()) == rank) own.push_back(std::move(stage));
  }
  return own;
}

PipelineOptions runner_options(const TestModel& model, PipelineOptions options) {
  options.loss = model.loss;
  options.ports = model.ports;
  options.ties = model.ties;
  return options;
}

void run_spmd(const ScheduleSource& source, const TestModel& model, PipelineOptions options,
              const std::function<void(Runner& runner, Transport& transport)>& body) {
  PipelineOptions all = runner_options(model, std::move(options));
  all.source = source;
  LocalWorld world(source.placement().num_ranks());
  world.run([&](Transport& transport) {
    Runner runner(transport, stages_on(model, source.placement(), transport.rank()), all);
    body(runner, transport);
  });
}

Microbatches part_of(const Microbatches& batch, const Placement& placement, Rank rank) {
  Microbatches part;
  if (placement.get_rank(StageId(0)) == rank) {
    part.inputs = batch.inputs;
    part.weights = batch.weights;
  }
  if (placement.get_rank(StageId(placement.num_stages() - 1)) == rank) {
    part.targets = batch.targets;
    part.weights = batch.weights;
  }
  return part;
}

}  // namespace stagecraft
