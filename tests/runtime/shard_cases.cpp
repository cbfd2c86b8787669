#include "tests/runtime/shard_cases.h"

#include <chrono>
#include <utility>

#include <gtest/gtest.h>

#include <ATen/core/grad_mode.h>

#include "stagecraft/runtime/runner.h"
#include "stagecraft/shard/parameter_shards.h"

namespace stagecraft {
namespace {

void update(Runner& runner) {
  const at::NoGradGuard no_grad;
  if (!runner.shards()) {
    for (at::Tensor& parameter : runner.parameters()) {
      if (parameter.grad().defined()) parameter.add_(parameter.grad(), -kShardRate);
      parameter.mutable_grad().reset();
    }
    return;
  }
  for (const auto& unit : runner.shards()->units()) {
    for (std::size_t i = 0; i < unit->segments().size(); ++i) {
      const at::Tensor grad = unit->grad(i);
      if (grad.defined()) unit->value(i).add_(grad, -kShardRate);
    }
  }
  runner.gather_weights();
  runner.shards()->zero_grad();
}

}  // namespace

Microbatches shard_batch(const ShardCase& c, int32_t update, int32_t part, int32_t replica) {
  const int64_t rows = c.rows[static_cast<std::size_t>(replica)] * c.schedule.microbatches;
  Microbatches batch = random_batch(c.schedule.microbatches, rows, c.width,
                                    static_cast<uint64_t>(1000 * update + 100 * part + replica));
  batch.weights.clear();  // by their rows
  return batch;
}

ShardOutcome train_sharded(Transport& transport, const ShardCase& c, ShardKind kind) {
  const TestModel model = c.make_model();
  const ScheduleSource source = c.schedule.source();
  const Placement& placement = source.placement();
  const Rank own(transport.rank().value() % c.schedule.ranks);
  const int32_t replica = transport.rank().value() / c.schedule.ranks;
  Runner runner(transport, stages_on(model, placement, own),
                runner_options(model, {.source = source,
                                       .timeout = std::chrono::seconds(20),
                                       .seed = 7,
                                       .replicas = c.replicas,
                                       .shard = kind,
                                       .shard_units = c.units}));
  ShardOutcome outcome;
  for (int32_t number = 0; number < kShardUpdates; ++number) {
    for (int32_t part = 0; part < c.accumulate; ++part) {
      if (c.before_step) c.before_step(runner, transport, number * c.accumulate + part);
      const StepResult result = runner.step(
          part_of(shard_batch(c, number, part, replica), placement, own),
          {.microbatches = c.schedule.microbatches,
           .reduce_grads = c.reduces.empty() || c.reduces[static_cast<std::size_t>(part)],
           .outputs = OutputMode::kNone,
           .everywhere = true});
      outcome.losses.push_back(result.loss().clone());
    }
    update(runner);
  }
  runner.with_whole_parameters([&] {
    for (const at::Tensor& parameter : runner.parameters()) {
      outcome.parameters.push_back(parameter.detach().clone());
    }
  });
  // No rank releases its tensors while other ranks read them.
  transport.barrier(Deadline::after(std::chrono::seconds(20)));
  return outcome;
}

void check_kinds(Transport& transport, const ShardCase& c) {
  SCOPED_TRACE(to_string(c.schedule) + ", replicas: " + std::to_string(c.replicas));
  const ShardOutcome expected = train_sharded(transport, c, ShardKind::kNone);
  for (const ShardKind kind :
       {ShardKind::kOptimizer, ShardKind::kGradients, ShardKind::kParameters}) {
    SCOPED_TRACE(to_string(kind));
    const ShardOutcome got = train_sharded(transport, c, kind);
    EXPECT_EQ(difference("losses", got.losses, expected.losses), "");
    EXPECT_EQ(difference("parameters", got.parameters, expected.parameters), "");
  }
}

}  // namespace stagecraft
