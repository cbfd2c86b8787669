#include "tests/runtime/replica_cases.h"

#include <chrono>
#include <numeric>
#include <utility>

#include <gtest/gtest.h>

#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {
namespace {

constexpr int32_t kSteps = 2;
constexpr uint64_t kSeed = 7;

// The microbatches of one replica.
Microbatches batch_of(const ReplicaCase& c, int32_t replica, int32_t step) {
  const int64_t rows = c.rows[static_cast<std::size_t>(replica)] * c.schedule.microbatches;
  Microbatches batch =
      random_batch(c.schedule.microbatches, rows, 6, static_cast<uint64_t>(100 * step + replica));
  batch.weights.clear();  // by their rows
  return batch;
}

// Those of all replicas, replica by replica.
Microbatches whole_batch(const ReplicaCase& c, int32_t step) {
  Microbatches all;
  for (int32_t replica = 0; replica < c.replicas; ++replica) {
    Microbatches part = batch_of(c, replica, step);
    for (auto& each : part.inputs) all.inputs.push_back(std::move(each));
    for (auto& each : part.targets) all.targets.push_back(std::move(each));
  }
  return all;
}

ScheduleSource source_of(const ReplicaCase& c) {
  if (!c.lowering) return c.schedule.source();
  const auto make = [&c](int32_t microbatches) {
    return lower(build_schedule(c.schedule.name, {.ranks = c.schedule.ranks,
                                                  .microbatches = microbatches,
                                                  .stages_per_rank = c.schedule.stages_per_rank}),
                 *c.lowering);
  };
  return ScheduleSource::made_by(make, c.schedule.source().placement());
}

struct Outcome {
  std::vector<at::Tensor> losses;
  std::vector<at::Tensor> grads;
};

Outcome train_whole(const ReplicaCase& c) {
  const TestModel model = c.make_model();
  Pipeline pipeline = make_pipeline(model, c.schedule, {.seed = kSeed});
  Outcome outcome;
  for (int32_t step = 0; step < kSteps; ++step) {
    const StepResult result = pipeline.step(whole_batch(c, step));
    outcome.losses.insert(outcome.losses.end(), result.losses.begin(), result.losses.end());
    outcome.losses.push_back(result.loss());
  }
  outcome.grads = take_grads(model.bodies);
  return outcome;
}

}  // namespace

void check_replicas(Transport& transport, const ReplicaCase& c) {
  SCOPED_TRACE(to_string(c.schedule) + ", replicas: " + std::to_string(c.replicas));
  const TestModel model = c.make_model();
  const ScheduleSource source = source_of(c);
  const Placement& placement = source.placement();
  const Rank own(transport.rank().value() % c.schedule.ranks);
  const int32_t replica = transport.rank().value() / c.schedule.ranks;
  Runner runner(transport, stages_on(model, placement, own),
                runner_options(model, {.source = source,
                                       .timeout = std::chrono::seconds(20),
                                       .seed = kSeed,
                                       .replicas = c.replicas}));
  EXPECT_EQ(runner.replica(), replica);
  Outcome outcome;
  for (int32_t step = 0; step < kSteps; ++step) {
    const StepResult result = runner.step(part_of(batch_of(c, replica, step), placement, own),
                                          {.microbatches = c.schedule.microbatches,
                                           .reduce_grads = !c.reduces_once || step + 1 == kSteps,
                                           .outputs = OutputMode::kNone,
                                           .everywhere = true});
    outcome.losses.insert(outcome.losses.end(), result.losses.begin(), result.losses.end());
    outcome.losses.push_back(result.loss());
  }
  std::vector<c10::IValue> sent;
  std::vector<bool> is_own;
  for (const StageParameter& parameter : parameters_of(model.bodies)) {
    is_own.push_back(placement.get_rank(parameter.stage) == own);
    if (!is_own.back()) continue;
    outcome.grads.push_back(parameter.tensor.grad());
    sent.emplace_back(parameter.tensor.grad());
  }

  const Outcome whole = train_whole(c);
  std::vector<at::Tensor> expected;
  for (std::size_t i = 0; i < is_own.size(); ++i) {
    if (is_own[i]) expected.push_back(whole.grads[i]);
  }
  EXPECT_EQ(difference("losses", outcome.losses, whole.losses), "");
  EXPECT_EQ(difference("gradients", outcome.grads, expected, 1e-6), "");

  const auto all =
      transport.all_gather(tree::tuple(std::move(sent)), Deadline::after(std::chrono::seconds(20)));
  for (int32_t other = 0; other < c.replicas; ++other) {
    const auto twin = static_cast<std::size_t>(other * c.schedule.ranks + own.value());
    std::vector<at::Tensor> grads;
    for (const c10::IValue& grad : all[twin].toTupleRef().elements()) {
      grads.push_back(grad.toTensor());
    }
    EXPECT_EQ(difference("gradients of replica " + std::to_string(other), outcome.grads, grads),
              "");
  }
  // No rank releases its tensors while other ranks read them.
  transport.barrier(Deadline::after(std::chrono::seconds(20)));
}

}  // namespace stagecraft
