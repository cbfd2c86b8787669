// Updates that stay on a device, against one that is not there.

#include "stagecraft/train/device_update.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>

#include "stagecraft/stage/random_scope.h"
#include "stagecraft/train/clip.h"
#include "stagecraft/train/trainer.h"
#include "tests/support/fake_device_probe.h"
#include "tests/support/fake_graph_device.h"
#include "tests/train/small_gpt.h"

namespace stagecraft {
namespace {

/// Parameters of several shapes, with gradients that stay where they are.
struct Weights {
  std::vector<ModelState> states;

  explicit Weights(at::ScalarType type = at::kFloat) {
    const RandomScope random(3);
    for (const auto& sizes : std::vector<std::vector<int64_t>>{{3, 4}, {4}, {2, 2, 5}}) {
      at::Tensor parameter = at::randn(sizes).to(type).requires_grad_();
      parameter.mutable_grad() = at::randn(sizes).to(type);
      states.push_back({.name = "w" + std::to_string(states.size()),
                        .is_parameter = true,
                        .stage = StageId(0),
                        .copies = {parameter}});
    }
  }

  void set_grads(uint64_t step) const {
    const RandomScope random(100 + step);
    for (const ModelState& state : states) {
      state.tensor().grad().copy_(at::randn(state.tensor().sizes()) * 3);
    }
  }

  std::vector<at::Tensor> values() const {
    std::vector<at::Tensor> values;
    for (const ModelState& state : states) values.push_back(state.tensor().detach().clone());
    return values;
  }
};

TEST(DeviceUpdate, IsTheUpdateOfTheHost) {
  const FakeDeviceProbes probes(1000);
  const Weights weights;
  const Weights host;
  AdamW optimizer(weights.states);
  AdamW host_optimizer(host.states);
  const auto update = detail::DeviceUpdate::make(optimizer, 0.5, GraphMode::kOff);
  ASSERT_NE(update, nullptr);
  for (uint64_t step = 0; step < 5; ++step) {
    weights.set_grads(step);
    host.set_grads(step);
    const double norm = update->run(1e-2).item<double>();
    const double expected = grad_norm(host.states);
    EXPECT_NEAR(norm, expected, 1e-5 * expected);
    EXPECT_GT(norm, 0.5);
    clip_grads(host.states, expected, 0.5);
    host_optimizer.step(1e-2);
    for (std::size_t i = 0; i < weights.states.size(); ++i) {
      EXPECT_TRUE(at::allclose(weights.values()[i], host.values()[i], 1e-5, 1e-7)) << step;
    }
  }
}

TEST(DeviceUpdate, IsReplayedWithTheSameBits) {
  const FakeDeviceProbes probes(1000);
  const FakeGraphDevices graphs;
  const auto train = [](GraphMode mode) {
    const Weights weights;
    AdamW optimizer(weights.states);
    const auto update = detail::DeviceUpdate::make(optimizer, 0.5, mode);
    std::vector<double> norms;
    for (uint64_t step = 0; step < 6; ++step) {
      weights.set_grads(step);
      norms.push_back(update->run(1e-2 / static_cast<double>(step + 1)).item<double>());
    }
    EXPECT_EQ(update->num_replayed(), mode == GraphMode::kOff ? 0 : 5);
    return std::pair(norms, weights.values());
  };
  const auto [norms, values] = train(GraphMode::kOff);
  const auto [replayed_norms, replayed] = train(GraphMode::kAuto);
  EXPECT_EQ(norms, replayed_norms);
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_TRUE(at::equal(values[i], replayed[i]));
}

// Run and replayed, half weights follow their float32 copies, which the host would update the same.
TEST(DeviceUpdate, WritesHalfWeightsFromTheirFloat32Copies) {
  const FakeDeviceProbes probes(1000);
  const FakeGraphDevices graphs;
  for (const GraphMode mode : {GraphMode::kOff, GraphMode::kAuto}) {
    const Weights weights(at::kBFloat16);
    const Weights host(at::kBFloat16);
    AdamW optimizer(weights.states, {.master_weights = true});
    AdamW host_optimizer(host.states, {.master_weights = true});
    const auto update = detail::DeviceUpdate::make(optimizer, 0, mode);
    for (uint64_t step = 0; step < 4; ++step) {
      weights.set_grads(step);
      host.set_grads(step);
      const std::vector<at::Tensor> before = weights.values();
      update->run(1e-1);
      host_optimizer.step(1e-1);
      for (std::size_t i = 0; i < weights.states.size(); ++i) {
        const at::Tensor& master = optimizer.moments()[i].master;
        EXPECT_TRUE(at::allclose(master, host_optimizer.moments()[i].master, 1e-5, 1e-7)) << step;
        EXPECT_TRUE(at::equal(weights.values()[i], master.to(at::kBFloat16))) << step;
        EXPECT_FALSE(at::equal(weights.values()[i], before[i])) << step;
      }
    }
    EXPECT_EQ(update->num_replayed(), mode == GraphMode::kOff ? 0 : 3);
  }
}

TEST(DeviceUpdate, InfiniteGradientsChangeNothing) {
  const FakeDeviceProbes probes(1000);
  const FakeGraphDevices graphs;
  const Weights weights;
  AdamW optimizer(weights.states);
  const auto update = detail::DeviceUpdate::make(optimizer, 0.5, GraphMode::kAuto);
  for (uint64_t step = 0; step < 4; ++step) {
    weights.set_grads(step);
    const bool is_bad = step % 2 == 1;
    if (is_bad) weights.states[1].tensor().grad()[2] = std::numeric_limits<float>::infinity();
    const std::vector<at::Tensor> before = weights.values();
    const double norm = update->run(1e-2).item<double>();
    EXPECT_EQ(std::isfinite(norm), !is_bad);
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_EQ(at::equal(before[i], weights.values()[i]), is_bad) << step;
    }
  }
  EXPECT_EQ(optimizer.moments()[0].updates.item<float>(), 2);
}

TEST(DeviceUpdate, IsOfOneDeviceOnly) {
  const Weights weights;
  AdamW optimizer(weights.states);
  EXPECT_EQ(detail::DeviceUpdate::make(optimizer, 0, GraphMode::kAuto), nullptr);  // the CPU
}

TEST(DeviceUpdate, TrainsWithTheSameBitsWithAndWithoutGraphs) {
  const FakeDeviceProbes probes(1000);
  const FakeGraphDevices graphs;
  const auto train = [](GraphMode mode, int32_t stages) {
    TrainerSetup setup{.stages = stages};
    setup.options.ranks = stages;
    setup.options.graphs = mode;
    setup.options.microbatches = 3;
    Trainer trainer = make_trainer(std::move(setup));
    std::vector<double> numbers = curve(trainer, 10);
    return std::pair(std::move(numbers), values_of(trainer));
  };
  const auto expected = train(GraphMode::kOff, 1);
  for (const int32_t stages : {1, 2}) {
    const auto got = train(GraphMode::kOn, stages);
    EXPECT_EQ(expected.first, got.first) << stages;
    EXPECT_TRUE(same_bits(expected.second, got.second)) << stages;
  }
}

}  // namespace
}  // namespace stagecraft
