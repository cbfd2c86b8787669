// Sharded replicas whose stages are on a CUDA device: four ranks that are threads, one device.

#include <chrono>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>

#include "stagecraft/runtime/runner.h"
#include "stagecraft/shard/parameter_shards.h"
#include "stagecraft/stage/callable.h"
#include "stagecraft/stage/random_scope.h"
#include "stagecraft/transport/local/local_world.h"
#include "tests/gpu/gpu_test.h"

namespace stagecraft {
namespace {

using ShardGpu = GpuTest;

constexpr int32_t kStages = 4;
constexpr int64_t kWidth = 96;

/// The weights of each rank after three updates, on the CPU.
std::vector<std::vector<at::Tensor>> train_sharded(ShardKind kind, c10::Device device,
                                                   c10::ScalarType type) {
  const ScheduleSource source = ScheduleSource::named("Interleaved1F1B", 2, 2);
  std::vector<std::vector<at::Tensor>> weights(4);
  LocalWorld world(4);
  world.run([&](Transport& transport) {
    const Rank own(transport.rank().value() % 2);
    std::vector<Stage> stages;
    for (const StageId stage : source.placement().stages(own)) {
      const RandomScope random(static_cast<uint64_t>(stage.value() + 1));
      const at::Tensor w = (at::randn({kWidth, kWidth}) * 0.2).to(device, type).requires_grad_();
      stages.emplace_back(
          stage, kStages,
          stage_body([w](const at::Tensor& x) { return at::tanh(at::linear(x, w)); }, {{"w", w}}),
          StageOptions{.device = device});
    }
    Runner runner(
        transport, std::move(stages),
        {.source = source,
         .loss = [](const at::Tensor& y, const at::Tensor& t) { return at::mse_loss(y, t); },
         .timeout = std::chrono::seconds(60),
         .seed = 7,
         .replicas = 2,
         .shard = kind});
    for (int update = 0; update < 3; ++update) {
      const RandomScope random(static_cast<uint64_t>(100 * update + runner.replica()));
      const at::Tensor x = at::randn({16, kWidth}).to(device, type);
      const at::Tensor y = at::randn({16, kWidth}).to(device, type);
      runner.step(own == Rank(0) ? Args{x} : Args{}, {},
                  own == Rank(1) ? c10::IValue(y) : c10::IValue(), {.microbatches = 4});
      const at::NoGradGuard no_grad;
      if (!runner.shards()) {
        for (at::Tensor& each : runner.parameters()) {
          each.add_(each.grad(), -0.1);
          each.mutable_grad().reset();
        }
        continue;
      }
      for (const auto& unit : runner.shards()->units()) {
        for (std::size_t i = 0; i < unit->segments().size(); ++i) {
          unit->value(i).add_(unit->grad(i), -0.1);
        }
      }
      runner.gather_weights();
      runner.shards()->zero_grad();
      if (kind != ShardKind::kParameters || update != 1) continue;
      // Gathers are measured on the device, and change no bit.
      const MeasuredLookahead found = runner.fit_unshard_lookahead();
      EXPECT_EQ(found.lookahead.size(), 2U);
      for (const double gather : found.costs.gather) EXPECT_GT(gather, 0);
      for (const StageCost& stage : found.costs.stages) EXPECT_GT(stage.forward, 0);
    }
    runner.with_whole_parameters([&] {
      for (const at::Tensor& each : runner.parameters()) {
        weights[transport.rank().position()].push_back(each.detach().cpu());
      }
    });
    transport.barrier(Deadline::after(std::chrono::seconds(60)));
  });
  return weights;
}

TEST_F(ShardGpu, HasTheBitsOfWholeReplicas) {
  for (const c10::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const auto expected = train_sharded(ShardKind::kNone, gpu_, type);
    for (const ShardKind kind :
         {ShardKind::kOptimizer, ShardKind::kGradients, ShardKind::kParameters}) {
      SCOPED_TRACE(to_string(kind));
      const auto got = train_sharded(kind, gpu_, type);
      for (std::size_t r = 0; r < got.size(); ++r) {
        ASSERT_EQ(got[r].size(), 2U);
        for (std::size_t i = 0; i < got[r].size(); ++i) {
          EXPECT_TRUE(at::equal(got[r][i], expected[r][i])) << "rank " << r;
        }
      }
    }
  }
}

}  // namespace
}  // namespace stagecraft
