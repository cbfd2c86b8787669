#include "stagecraft/runtime/tied_weights.h"

#include <stdexcept>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>

#include "stagecraft/base/error.h"
#include "stagecraft/runtime/pipeline.h"
#include "stagecraft/stage/callable.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

// Four stages; the first and the last hold a copy of one weight.
struct Model {
  std::vector<at::Tensor> weights;

  Model() {
    for (int i = 0; i < 4; ++i) weights.push_back(at::randn({5, 5}));
    weights[3] = weights[0].clone();
    for (at::Tensor& w : weights) w.requires_grad_();
  }

  Pipeline pipeline(const char* schedule, int32_t ranks, bool is_tied = true) const {
    std::vector<Stage> stages;
    for (int s = 0; s < 4; ++s) {
      const at::Tensor& w = weights[static_cast<std::size_t>(s)];
      stages.emplace_back(
          StageId(s), 4,
          stage_body([w](const at::Tensor& x) { return at::tanh(x.mm(w)); }, {{"w", w}}));
    }
    PipelineOptions options{.schedule = schedule, .ranks = ranks, .loss = [](const at::Tensor& y) {
                              return y.square().mean();
                            }};
    if (is_tied) options.ties = {{{StageId(0), "w"}, {StageId(3), "w"}}};
    return Pipeline(std::move(stages), std::move(options));
  }

  at::Tensor take_grad(std::size_t s) const {
    const at::Tensor grad = weights[s].grad();
    weights[s].mutable_grad().reset();
    return grad;
  }
};

struct Schedule {
  const char* name;
  int32_t ranks;
};
constexpr Schedule kSchedules[] = {{"GPipe", 4},
                                   {"1F1B", 4},
                                   {"Interleaved1F1B", 2},
                                   {"ZBVZeroBubble", 2},
                                   {"Interleaved1F1B", 1}};

TEST(TiedWeights, EveryCopyGetsTheSumLastStageFirst) {
  for (const Schedule& schedule : kSchedules) {
    SCOPED_TRACE(schedule.name);
    const Model model;
    const at::Tensor x = at::randn({6, 5});
    model.pipeline(schedule.name, schedule.ranks, false).step({x}, {}, {}, {.microbatches = 3});
    const at::Tensor first = model.take_grad(0);
    const at::Tensor last = model.take_grad(3);
    model.pipeline(schedule.name, schedule.ranks).step({x}, {}, {}, {.microbatches = 3});
    EXPECT_TRUE(at::equal(model.weights[0].grad(), last + first));
    EXPECT_TRUE(at::equal(model.weights[3].grad(), last + first));
    EXPECT_NE(model.weights[0].grad().data_ptr(), model.weights[3].grad().data_ptr());
  }
}

TEST(TiedWeights, AreThoseOfTheUncutModel) {
  const Model model;
  const at::Tensor x = at::randn({6, 5});
  model.pipeline("1F1B", 4).step({x}, {}, {}, {.microbatches = 3});
  const at::Tensor shared = model.weights[0].detach().requires_grad_();
  for (const at::Tensor& part : x.chunk(3)) {
    at::Tensor h = at::tanh(part.mm(shared));
    for (const std::size_t s : {1, 2}) h = at::tanh(h.mm(model.weights[s].detach()));
    (at::tanh(h.mm(shared)).square().mean() / 3).backward();
  }
  EXPECT_TRUE(at::allclose(model.weights[0].grad(), shared.grad(), 1e-5, 1e-6));
}

TEST(TiedWeights, AddToTheGradientsOfEarlierStepsOnce) {
  const Model model;
  const at::Tensor x = at::randn({6, 5});
  Pipeline pipeline = model.pipeline("1F1B", 4);
  pipeline.step({x}, {}, {}, {.microbatches = 3});
  const at::Tensor once = model.weights[0].grad().clone();
  pipeline.step({x}, {}, {}, {.microbatches = 3});
  EXPECT_TRUE(at::equal(model.weights[0].grad(), once + once));
  EXPECT_TRUE(at::equal(model.weights[3].grad(), once + once));
}

TEST(TiedWeights, AFailedStepLeavesThemAsTheyWere) {
  const Model model;
  const at::Tensor x = at::randn({6, 5});
  Pipeline pipeline = model.pipeline("1F1B", 4);
  pipeline.step({x}, {}, {}, {.microbatches = 3});
  const at::Tensor before = model.weights[0].grad().clone();
  bool fails = true;
  pipeline.callbacks().observe([&](Rank, Action action, ActionPhase) {
    if (fails && action.type() == ActionType::kBackward && action.stage() == StageId(1) &&
        action.microbatch() == MicrobatchId(2)) {
      throw std::runtime_error("on purpose");
    }
  });
  EXPECT_ERROR(pipeline.step({x}, {}, {}, {.microbatches = 3}), StageError, "on purpose");
  EXPECT_TRUE(at::equal(model.weights[0].grad(), before));
  EXPECT_TRUE(at::equal(model.weights[3].grad(), before));
  fails = false;
  pipeline.step({x}, {}, {}, {.microbatches = 3});
  EXPECT_TRUE(at::equal(model.weights[0].grad(), before + before));
}

TEST(TiedWeights, RefuseWhatIsNotThere) {
  const Model model;
  auto with = [&](std::vector<TiedWeight> ties) {
    std::vector<Stage> stages;
    for (int s = 0; s < 2; ++s) {
      stages.emplace_back(StageId(s), 2,
                          stage_body([](const at::Tensor& x) { return x; },
                                     {{"w", model.weights[static_cast<std::size_t>(s)]}}));
    }
    Pipeline(std::move(stages), {.ranks = 2, .ties = std::move(ties)});
  };
  EXPECT_ERROR(with({{{StageId(0), "w"}, {StageId(1), "v"}}}), ArgumentError,
               "stage 1 has no parameter \"v\"; it has [w]");
  EXPECT_ERROR(with({{{StageId(0), "w"}}}), ArgumentError, "two or more different stages");
  EXPECT_ERROR(with({{{StageId(0), "w"}, {StageId(0), "w"}}}), ArgumentError,
               "is the same tensor as that of a different stage");
  EXPECT_THROW(with({{{StageId(0), "w"}, {StageId(2), "w"}}}), ArgumentError);
}

}  // namespace
}  // namespace stagecraft
