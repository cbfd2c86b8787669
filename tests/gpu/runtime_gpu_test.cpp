// Pipelines whose stages are on a CUDA device: four ranks that are threads, one device.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "stagecraft/runtime/pipeline.h"
#include "stagecraft/runtime/runner.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/stage/callable.h"
#include "stagecraft/stage/random_scope.h"
#include "stagecraft/transport/local/local_world.h"
#include "tests/gpu/gpu_test.h"

namespace stagecraft {
namespace {

using RuntimeGpu = GpuTest;

constexpr int64_t kHidden = 64;
constexpr int64_t kRows = 24;
constexpr uint64_t kSeed = 11;

struct Model {
  std::vector<at::Tensor> weights;
  double dropout = 0;
  bool has_skip = false;

  Model(int32_t stages, c10::Device device) {
    const RandomScope random(3);
    for (int32_t s = 0; s < stages; ++s) {
      weights.push_back((at::randn({kHidden, kHidden}) * 0.2).to(device).requires_grad_());
    }
  }

  at::Tensor run(std::size_t s, const at::Tensor& x, const at::Tensor& skip) const {
    at::Tensor y = at::tanh(at::linear(x, weights[s]));
    if (skip.defined()) y = y + skip;
    return dropout > 0 ? at::dropout(y, dropout, true) : y;
  }

  std::vector<Stage> stages(c10::Device device) const {
    std::vector<Stage> result;
    const auto n = static_cast<int32_t>(weights.size());
    for (int32_t s = 0; s < n; ++s) {
      auto forward = [model = *this, s](const at::Tensor& x, const at::Tensor& skip) {
        return model.run(static_cast<std::size_t>(s), x, skip);
      };
      result.emplace_back(StageId(s), n,
                          stage_body(forward, {{"w", weights[static_cast<std::size_t>(s)]}}),
                          StageOptions{.device = device});
    }
    return result;
  }

  std::optional<Ports> ports() const {
    const auto n = static_cast<int32_t>(weights.size());
    if (!has_skip || n < 3) return std::nullopt;
    Ports ports(n);
    ports.connect({StageId(0), 0}, {StageId(1), 0}).connect({StageId(0), 0}, {StageId(n - 1), 1});
    return ports;
  }

  // One microbatch after another, one graph each, on this thread.
  std::vector<at::Tensor> loop(const at::Tensor& x, const at::Tensor& target, int64_t microbatches,
                               bool is_reversed) const {
    const auto xs = x.tensor_split(microbatches);
    const auto targets = target.tensor_split(microbatches);
    for (int64_t k = 0; k < microbatches; ++k) {
      const auto m = static_cast<std::size_t>(is_reversed ? microbatches - 1 - k : k);
      at::Tensor h = xs[m];
      at::Tensor skip;
      for (std::size_t s = 0; s < weights.size(); ++s) {
        const RandomScope random(mix_seed(kSeed, 0, m, s));
        const bool reads_skip = has_skip && weights.size() >= 3 && s + 1 == weights.size();
        h = run(s, h, reads_skip ? skip : at::Tensor());
        if (s == 0) skip = h;
      }
      const double weight = static_cast<double>(xs[m].size(0)) / static_cast<double>(x.size(0));
      (at::mse_loss(h, targets[m]) * weight).backward();
    }
    return take_grads();
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

void expect_parity(const Model& model, const std::string& schedule, int32_t ranks,
                   int32_t microbatches, c10::Device device) {
  SCOPED_TRACE(schedule);
  const at::Tensor x = at::randn({kRows, kHidden}, at::TensorOptions(device));
  const at::Tensor target = at::randn({kRows, kHidden}, at::TensorOptions(device));
  Pipeline pipeline(
      model.stages(device),
      {.schedule = schedule,
       .ranks = ranks,
       .loss = [](const at::Tensor& y, const at::Tensor& t) { return at::mse_loss(y, t); },
       .ports = model.ports(),
       .seed = kSeed});
  pipeline.step({x}, {}, target, {.microbatches = microbatches});
  const std::vector<at::Tensor> got = model.take_grads();
  const std::vector<at::Tensor> expected =
      model.loop(x, target, microbatches, schedule == "LoopedBFS");
  for (std::size_t s = 0; s < got.size(); ++s) {
    EXPECT_TRUE(got[s].is_cuda());
    EXPECT_TRUE(at::equal(got[s], expected[s]))
        << "stage " << s << ", largest difference "
        << (got[s] - expected[s]).abs().max().item().toDouble();
  }
}

/// Makes a stream of its own the current one of this thread while it lives.
class OwnStream {
 public:
  explicit OwnStream(c10::Device device)
      : guard_(device.type()),
        before_(guard_.exchangeStream(guard_.getStreamFromGlobalPool(device))) {}
  ~OwnStream() { guard_.exchangeStream(before_); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

 private:
  c10::impl::VirtualGuardImpl guard_;
  c10::Stream before_;
};

// Values that one rank's stream makes are read on another's: only events keep them apart.
TEST_F(RuntimeGpu, RanksOnStreamsOfTheirOwnHaveTheGradientsOfOneStream) {
  const c10::Device device(c10::kCUDA, 0);
  const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  constexpr int32_t kRanks = 4;
  for (const ScheduleKind& kind : schedule_kinds()) {
    if (!kind.has_backward) continue;
    SCOPED_TRACE(kind.name);
    const ScheduleSource source = ScheduleSource::named(std::string(kind.name), kRanks);
    const Placement& placement = source.placement();
    const Model model(placement.num_stages(), device);
    const at::Tensor x = at::randn({kRows, kHidden}, at::TensorOptions(device));
    const at::Tensor target = at::randn({kRows, kHidden}, at::TensorOptions(device));
    guard.synchronizeDevice(device.index());
    LocalWorld world(kRanks);
    world.run([&](Transport& transport) {
      const OwnStream stream(device);
      std::vector<Stage> own;
      for (Stage& stage : model.stages(device)) {
        if (placement.get_rank(stage.index()) == transport.rank()) own.push_back(std::move(stage));
      }
      const auto owner = [&](int32_t stage) { return placement.get_rank(StageId(stage)); };
      const bool is_first = owner(0) == transport.rank();
      const bool is_last = owner(placement.num_stages() - 1) == transport.rank();
      Runner runner(
          transport, std::move(own),
          {.source = source,
           .loss = [](const at::Tensor& y, const at::Tensor& t) { return at::mse_loss(y, t); },
           .seed = kSeed});
      runner.step(is_first ? Args{x} : Args{}, {}, is_last ? c10::IValue(target) : c10::IValue(),
                  {.microbatches = 8});
    });
    guard.synchronizeDevice(device.index());
    const std::vector<at::Tensor> got = model.take_grads();
    const std::vector<at::Tensor> expected = model.loop(x, target, 8, kind.name == "LoopedBFS");
    for (std::size_t s = 0; s < got.size(); ++s) {
      EXPECT_TRUE(at::equal(got[s], expected[s])) << "stage " << s;
    }
  }
}

TEST_F(RuntimeGpu, EveryScheduleOnFourRanksHasTheGradientsOfTheLoop) {
  for (const ScheduleKind& kind : schedule_kinds()) {
    if (!kind.has_backward) continue;
    const Model model(4 * kind.default_stages_per_rank, c10::kCUDA);
    expect_parity(model, std::string(kind.name), 4, 8, c10::Device(c10::kCUDA, 0));
    expect_parity(model, std::string(kind.name), 4, 8, c10::Device(c10::kCUDA, 0));
  }
}

TEST_F(RuntimeGpu, SkipsUnevenMicrobatchesAndDropout) {
  for (const char* schedule : {"1F1B", "GPipe", "ZBVZeroBubble", "InterleavedZeroBubble"}) {
    const int32_t stages = std::string(schedule).find("ZeroBubble") == std::string::npos ? 4 : 8;
    Model model(stages, c10::kCUDA);
    model.has_skip = true;
    expect_parity(model, schedule, 4, 5, c10::Device(c10::kCUDA, 0));
    model.dropout = 0.3;
    expect_parity(model, schedule, 4, 5, c10::Device(c10::kCUDA, 0));
  }
}

TEST_F(RuntimeGpu, InputsAndTargetsMayBeOnTheHostAndStagesOnDifferentDevices) {
  const at::Tensor w0 = (at::randn({kHidden, kHidden}) * 0.2).requires_grad_();
  const at::Tensor w1 = (at::randn({kHidden, kHidden}) * 0.2).to(c10::kCUDA).requires_grad_();
  std::vector<Stage> stages;
  stages.emplace_back(StageId(0), 2, stage_body([w0](const at::Tensor& x) { return x.mm(w0); }));
  stages.emplace_back(StageId(1), 2, stage_body([w1](const at::Tensor& x) { return x.mm(w1); }),
                      StageOptions{.device = c10::Device(c10::kCUDA, 0)});
  Pipeline pipeline(std::move(stages), {.ranks = 2, .loss = [](const at::Tensor& y) {
                                          EXPECT_TRUE(y.is_cuda());
                                          return y.square().mean();
                                        }});
  const at::Tensor x = at::randn({8, kHidden});
  pipeline.step({x}, {}, {}, {.microbatches = 4});
  EXPECT_TRUE(w0.grad().is_cpu());
  EXPECT_TRUE(w1.grad().is_cuda());
  const at::Tensor reference = w0.detach().requires_grad_();
  x.mm(reference).mm(w1.detach().cpu()).square().mean().backward();
  EXPECT_LE((w0.grad() - reference.grad()).abs().max().item().toDouble(), 1e-5);
}

TEST_F(RuntimeGpu, MeasuresMemoryOfTheDevice) {
  const c10::Device device(c10::kCUDA, 0);
  const Model model(4, device);
  Pipeline pipeline(model.stages(device),
                    {.ranks = 4, .loss = [](const at::Tensor& y) { return y.square().mean(); }});
  const at::Tensor x = at::randn({kRows, kHidden}, at::TensorOptions(device));
  pipeline.step({x}, {}, {}, {.microbatches = 8, .measure_memory = true});
  for (const RankReport& rank : pipeline.report().ranks) {
    ASSERT_TRUE(rank.peak_memory.has_value());
    EXPECT_GT(*rank.peak_memory, kRows / 8 * kHidden * 4);
  }
  EXPECT_GT(pipeline.peak_memory_estimate(8).peak(), 0);
}

}  // namespace
}  // namespace stagecraft
