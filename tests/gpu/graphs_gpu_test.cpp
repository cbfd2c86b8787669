// Steps that are replayed as CUDA graphs, against the same steps that are run.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tanh.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "stagecraft/base/log.h"
#include "stagecraft/runtime/launch/device_probe.h"
#include "stagecraft/runtime/launch/graph_device.h"
#include "stagecraft/runtime/pipeline.h"
#include "stagecraft/runtime/runner.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/stage/callable.h"
#include "stagecraft/stage/random_scope.h"
#include "stagecraft/transport/local/local_world.h"
#include "tests/gpu/gpu_test.h"

namespace stagecraft {
namespace {

constexpr int64_t kGraphWidth = 64;
constexpr uint64_t kGraphSeed = 7;

struct GraphModel {
  std::vector<at::Tensor> weights;
  double dropout = 0;
  bool recomputes = false;
  bool autocasts = false;
  bool attends = false;

  explicit GraphModel(int32_t stages) {
    const RandomScope random(3);
    for (int32_t s = 0; s < stages; ++s) {
      weights.push_back(
          (at::randn({kGraphWidth, kGraphWidth}) * 0.2).to(c10::kCUDA).requires_grad_());
    }
  }

  at::Tensor run(std::size_t s, const at::Tensor& x) const {
    at::Tensor y = at::tanh(at::linear(at::layer_norm(x, {kGraphWidth}), weights[s]));
    if (attends) {
      const at::Tensor heads = y.view({1, 4, -1, kGraphWidth / 4});
      y = at::scaled_dot_product_attention(heads, heads, heads, {}, dropout).reshape(x.sizes());
    }
    return dropout > 0 ? at::dropout(y, dropout, true) : y;
  }

  std::vector<Stage> stages() const {
    std::vector<Stage> result;
    const auto n = static_cast<int32_t>(weights.size());
    for (int32_t s = 0; s < n; ++s) {
      auto forward = [model = *this, s](const at::Tensor& x) {
        return model.run(static_cast<std::size_t>(s), x);
      };
      result.emplace_back(
          StageId(s), n, stage_body(forward, {{"w", weights[static_cast<std::size_t>(s)]}}),
          StageOptions{.device = c10::Device(c10::kCUDA, 0), .recompute = recomputes});
    }
    return result;
  }

  std::vector<at::Tensor> take_grads() const {
    std::vector<at::Tensor> grads;
    for (const at::Tensor& w : weights) {
      grads.push_back(w.grad().clone());
      w.mutable_grad().reset();
    }
    return grads;
  }
};

at::Tensor graph_loss(const at::Tensor& y, const at::Tensor& t) {
  return at::mse_loss(y.to(at::kFloat), t);
}

struct TrainedRun {
  std::vector<std::vector<at::Tensor>> grads;  // by update
  std::vector<double> losses;
  LaunchCounts counts;
};

/// A schedule for four stages, with backwards in ascending order.
PipelineOptions four_stages(int32_t ranks, GraphMode graphs) {
  return {.schedule = ranks == 4 ? "1F1B" : "Interleaved1F1B", .ranks = ranks, .graphs = graphs};
}

/// Trains with rows that change from step to step; the weights are changed in place.
TrainedRun train(const GraphModel& model, PipelineOptions options, int32_t steps,
                 const std::vector<int64_t>& rows, int32_t microbatches, int32_t accumulate = 1) {
  options.loss = graph_loss;
  options.seed = kGraphSeed;
  std::vector<at::Tensor> values;
  for (const at::Tensor& w : model.weights) values.push_back(w.detach().clone());
  Pipeline pipeline(model.stages(), options);
  TrainedRun run;
  const RandomScope random(99);
  for (int32_t step = 0; step < steps; ++step) {
    const int64_t count = rows[static_cast<std::size_t>(step) % rows.size()];
    for (int32_t part = 0; part < accumulate; ++part) {
      const at::Tensor x = at::randn({count, kGraphWidth}).to(c10::kCUDA);
      const at::Tensor target = at::randn({count, kGraphWidth}).to(c10::kCUDA);
      const bool was_on = at::autocast::is_autocast_enabled(c10::kCUDA);
      at::autocast::set_autocast_enabled(c10::kCUDA, model.autocasts);
      at::autocast::set_autocast_dtype(c10::kCUDA, at::kBFloat16);
      run.losses.push_back(
          pipeline.step({x}, {}, target, {.microbatches = microbatches}).loss().item<double>());
      at::autocast::set_autocast_enabled(c10::kCUDA, was_on);
      at::autocast::clear_cache();
    }
    run.grads.push_back(model.take_grads());
    for (std::size_t s = 0; s < model.weights.size(); ++s) {
      model.weights[s].detach().sub_(run.grads.back()[s], 0.05);
    }
  }
  run.counts = pipeline.launches();
  for (std::size_t s = 0; s < values.size(); ++s) model.weights[s].detach().copy_(values[s]);
  return run;
}

void expect_same_run(const TrainedRun& expected, const TrainedRun& got) {
  EXPECT_EQ(expected.losses, got.losses);
  ASSERT_EQ(expected.grads.size(), got.grads.size());
  for (std::size_t i = 0; i < got.grads.size(); ++i) {
    for (std::size_t s = 0; s < got.grads[i].size(); ++s) {
      EXPECT_TRUE(at::equal(expected.grads[i][s], got.grads[i][s]))
          << "update " << i << ", stage " << s << ", largest difference "
          << (expected.grads[i][s] - got.grads[i][s]).abs().max().item<double>();
    }
  }
}

using GraphsGpu = GpuTest;

TEST_F(GraphsGpu, EveryScheduleHasTheSameBitsWithAndWithoutGraphs) {
  for (const int32_t ranks : {1, 2, 4}) {
    for (const ScheduleKind& kind : schedule_kinds()) {
      if (!kind.has_backward) continue;
      SCOPED_TRACE(std::string(kind.name) + ", ranks " + std::to_string(ranks));
      const int32_t microbatches = 2 * ranks < 8 ? 8 : 2 * ranks;
      if (!kind.takes({ranks, kind.default_stages_per_rank, microbatches})) continue;
      const GraphModel model(ranks * kind.default_stages_per_rank);
      PipelineOptions options{.schedule = std::string(kind.name), .ranks = ranks};
      options.graphs = GraphMode::kOff;
      const TrainedRun expected = train(model, options, 5, {24}, microbatches);
      options.graphs = GraphMode::kOn;
      const TrainedRun got = train(model, options, 5, {24}, microbatches);
      expect_same_run(expected, got);
      EXPECT_EQ(got.counts.captured, 1);
      EXPECT_EQ(got.counts.replayed, 3);
    }
  }
}

TEST_F(GraphsGpu, DropoutDrawsTheSameForEveryNumberOfRanksAndWithRecompute) {
  for (const bool attends : {false, true}) {
    GraphModel model(4);
    model.dropout = 0.3;
    model.attends = attends;
    const TrainedRun expected = train(model, four_stages(1, GraphMode::kOff), 6, {32}, 4);
    for (const int32_t ranks : {1, 2, 4}) {
      for (const bool recomputes : {false, true}) {
        SCOPED_TRACE(ranks);
        model.recomputes = recomputes;
        expect_same_run(expected, train(model, four_stages(ranks, GraphMode::kOff), 6, {32}, 4));
        const TrainedRun got = train(model, four_stages(ranks, GraphMode::kOn), 6, {32}, 4);
        expect_same_run(expected, got);
        EXPECT_EQ(got.counts.replayed, 4);
      }
    }
  }
}

TEST_F(GraphsGpu, AutocastHasTheSameBits) {
  GraphModel model(4);
  model.autocasts = true;
  const TrainedRun expected = train(model, four_stages(2, GraphMode::kOff), 6, {32}, 4);
  const TrainedRun got = train(model, four_stages(2, GraphMode::kOn), 6, {32}, 4);
  expect_same_run(expected, got);
  EXPECT_EQ(got.counts.replayed, 4);
}

TEST_F(GraphsGpu, StepsOfOneUpdateAddUp) {
  const GraphModel model(2);
  const TrainedRun expected = train(model, {.ranks = 2, .graphs = GraphMode::kOff}, 6, {32}, 4, 3);
  const TrainedRun got = train(model, {.ranks = 2, .graphs = GraphMode::kOn}, 6, {32}, 4, 3);
  expect_same_run(expected, got);
  EXPECT_GE(got.counts.replayed, 6);
}

TEST_F(GraphsGpu, ChangingShapesAreOtherGraphs) {
  const GraphModel model(4);
  const std::vector<int64_t> rows = {24, 24, 24, 24, 31, 31, 31, 31, 40, 40, 40, 40};
  PipelineOptions options{.ranks = 4, .graphs = GraphMode::kOff, .max_graphs = 2};
  const TrainedRun expected = train(model, options, 36, rows, 5);
  options.graphs = GraphMode::kOn;
  const TrainedRun got = train(model, options, 36, rows, 5);
  expect_same_run(expected, got);
  EXPECT_LE(got.counts.graphs, 2);
}

TEST_F(GraphsGpu, WorkThatSynchronisesIsRunAndNamed) {
  const at::Tensor w =
      (at::randn({kGraphWidth, kGraphWidth}) * 0.2).to(c10::kCUDA).requires_grad_();
  std::vector<Stage> stages;
  stages.emplace_back(StageId(0), 1,
                      stage_body(
                          [w](const at::Tensor& x) {
                            const at::Tensor y = at::linear(x, w);
                            return y.detach().max().item<float>() > 1e9 ? y * 2 : y;
                          },
                          {{"w", w}}),
                      StageOptions{.device = c10::Device(c10::kCUDA, 0)});
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  Pipeline pipeline(std::move(stages), {.loss = graph_loss});
  const at::Tensor x = at::randn({32, kGraphWidth}).to(c10::kCUDA);
  std::vector<at::Tensor> grads;
  for (int step = 0; step < 6; ++step) {
    pipeline.step({x}, {}, x, {.microbatches = 4});
    grads.push_back(w.grad().clone());
    w.mutable_grad().reset();
  }
  set_log_sink({});
  EXPECT_EQ(pipeline.launches().replayed, 0);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("0F0"), std::string::npos) << lines[0];
  for (const at::Tensor& grad : grads) EXPECT_TRUE(at::equal(grad, grads[0]));
  // The device works on: a step of a model that can be captured.
  const GraphModel model(2);
  EXPECT_EQ(train(model, {.ranks = 2, .graphs = GraphMode::kOn}, 4, {32}, 4).counts.replayed, 2);
}

// torch releases a pool with its last graph, though a tensor of it may live on.
TEST_F(GraphsGpu, ADeviceWhoseGraphsAreGoneCapturesAgain) {
  const auto device = detail::find_graph_device(gpu_);
  ASSERT_NE(device, nullptr);
  const at::Tensor x = at::randn({1 << 20}, at::TensorOptions(gpu_));
  std::vector<at::Tensor> kept;
  for (int turn = 0; turn < 3; ++turn) {
    const auto stream = device->enter();
    device->begin_capture();
    kept.push_back(x * (turn + 1));
    const auto graph = device->end_capture();
    graph->replay({});
  }
  for (int turn = 0; turn < 3; ++turn) {
    EXPECT_TRUE(at::equal(kept[static_cast<std::size_t>(turn)], x * (turn + 1)));
  }
}

TEST_F(GraphsGpu, EvalIsReplayed) {
  const GraphModel model(2);
  Pipeline pipeline(model.stages(), {.ranks = 2, .loss = graph_loss, .graphs = GraphMode::kOn});
  Pipeline plain(model.stages(), {.ranks = 2, .loss = graph_loss, .graphs = GraphMode::kOff});
  for (int step = 0; step < 5; ++step) {
    const at::Tensor x = at::randn({32, kGraphWidth}).to(c10::kCUDA);
    const auto got = pipeline.eval({x}, {}, x, {.microbatches = 4}).output.toTensor();
    EXPECT_TRUE(at::equal(got, plain.eval({x}, {}, x, {.microbatches = 4}).output.toTensor()));
  }
  EXPECT_EQ(pipeline.launches().replayed, 3);
}

// Ranks that are threads with transports of their own, as ranks in processes are.
TEST_F(GraphsGpu, RunnersReplayTheirActionsWithTheSameBits) {
  GraphModel model(2);
  model.dropout = 0.1;
  const auto train_runners = [&](GraphMode graphs) {
    constexpr int kSteps = 6;
    TrainedRun run;
    run.losses.resize(kSteps);
    const ScheduleSource source = ScheduleSource::named("1F1B", 2);
    LocalWorld world(2);
    world.run([&](Transport& transport) {
      std::vector<Stage> all = model.stages();
      std::vector<Stage> own;
      own.push_back(std::move(all[transport.rank().position()]));
      Runner runner(transport, std::move(own),
                    {.source = source, .loss = graph_loss, .seed = kGraphSeed, .graphs = graphs});
      const auto meet = [&] { transport.barrier(Deadline::after(std::chrono::seconds(60))); };
      for (int step = 0; step < kSteps; ++step) {
        at::Tensor x;
        {
          const RandomScope random(static_cast<uint64_t>(100 + step));
          x = at::randn({32, kGraphWidth}).to(c10::kCUDA);
        }
        const bool is_first = transport.rank() == Rank(0);
        const StepResult result = is_first ? runner.step({x}, {}, {}, {.microbatches = 4})
                                           : runner.step({}, {}, x, {.microbatches = 4});
        if (!is_first) run.losses[static_cast<std::size_t>(step)] = result.loss().item<double>();
        const c10::impl::VirtualGuardImpl device(c10::kCUDA);
        device.synchronizeDevice(0);
        meet();
        if (is_first) run.grads.push_back(model.take_grads());
        device.synchronizeDevice(0);
        meet();
      }
      if (transport.rank() == Rank(0)) run.counts = runner.launches();
    });
    return run;
  };
  const TrainedRun got = train_runners(GraphMode::kOn);
  expect_same_run(train_runners(GraphMode::kOff), got);
  EXPECT_EQ(got.counts.replayed, 4);
}

TEST_F(GraphsGpu, TwoThousandReplaysWithChangingShapesDoNotGrow) {
  GraphModel model(4);
  model.dropout = 0.1;
  Pipeline pipeline(model.stages(), {.ranks = 4, .loss = graph_loss, .max_graphs = 3});
  const auto probe = detail::find_device_probe(c10::Device(c10::kCUDA, 0));
  detail::DeviceProbe::Memory after_warm_up;
  int64_t free_after_warm_up = 0;
  // Five shapes and three graphs: each block of 20 steps captures again.
  constexpr int kSteps = 2400;
  for (int step = 0; step < kSteps; ++step) {
    const int64_t rows = 16 + 8 * (step / 20 % 5);
    const at::Tensor x = at::randn({rows, kGraphWidth}, at::TensorOptions(c10::kCUDA));
    pipeline.step({x}, {}, x, {.microbatches = 4});
    for (const at::Tensor& w : model.weights) w.mutable_grad().reset();
    if (step == kSteps / 4) {
      after_warm_up = probe->memory();
      free_after_warm_up = probe->free_memory();
    }
  }
  constexpr int64_t kSlack = 8 << 20;
  EXPECT_GE(pipeline.launches().replayed, 2000);
  EXPECT_LE(pipeline.launches().graphs, 3);
  EXPECT_LE(probe->memory().reserved, after_warm_up.reserved + kSlack);
  EXPECT_LE(probe->memory().allocated, after_warm_up.allocated + kSlack);
  // Graphs also have memory of CUDA's own.
  EXPECT_GE(probe->free_memory(), free_after_warm_up - 2 * kSlack);
}

}  // namespace
}  // namespace stagecraft
