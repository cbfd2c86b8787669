// What programs with an interpreter of their own need of a step: ticks in its waits, a world whose
// runners recover together, the generators of the process, a loss made elsewhere.

#include "stagecraft/base/wait_tick.h"

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand_like.h>

#include "stagecraft/base/error.h"
#include "tests/runtime/harness.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

class StopRequest : public InterruptedError {
 public:
  StopRequest() : InterruptedError("interrupted") {}
};

// Rank 1 waits for rank 0, which does not come. A tick ends the wait, and rank 0 learns of it.
TEST(WaitTickTest, EndsAWaitAndTheWorldLearnsOfIt) {
  const TestModel model = chain_model(2);
  const Microbatches batch = random_batch(2, 6, 5, 1);
  std::promise<void> is_over;
  run_spmd(ScheduleSource::named("1F1B", 2), model, {}, [&](Runner& runner, Transport& transport) {
    const Microbatches own = part_of(batch, runner.placement(), transport.rank());
    if (transport.rank() == Rank(1)) {
      int ticks = 0;
      const WaitTick tick([&] {
        if (++ticks == 3) throw StopRequest();
      });
      EXPECT_THROW(runner.step(own, {.microbatches = 2}), StopRequest);
      is_over.set_value();
    } else {
      is_over.get_future().wait();
      EXPECT_ERROR(runner.step(own, {.microbatches = 2}), PeerError, "rank 1: interrupted");
    }
    EXPECT_NO_THROW(runner.step(own, {.microbatches = 2}));
  });
}

TEST(WaitTickTest, EndsAStepOfAPipelineWhoseRanksAreThreads) {
  TestModel model = chain_model(2);
  std::atomic<bool> is_slow{true};
  const auto inner = model.bodies[1].forward;
  model.bodies[1].forward = [&, inner](const Args& args, const Kwargs& kwargs) {
    if (is_slow) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return inner(args, kwargs);
  };
  Pipeline pipeline = make_pipeline(model, {.schedule = "GPipe"});
  const Microbatches batch = random_batch(8, 16, 5, 1);
  const auto begin = std::chrono::steady_clock::now();
  {
    const WaitTick tick([] { throw StopRequest(); });
    EXPECT_THROW(pipeline.step(batch), StopRequest);
  }
  // Far from the 1.6 s of the whole step, even if the machine is busy.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(1400));
  is_slow = false;
  EXPECT_EQ(check_step(pipeline, model, batch), "");
}

TEST(SharedWorld, ARunnerRecoversFromTheFailureOfAnother) {
  const TestModel model = chain_model(2);
  TestModel broken = chain_model(2);
  broken.bodies[1].forward = [](const Args&, const Kwargs&) -> c10::IValue {
    throw std::runtime_error("broken");
  };
  const ScheduleSource source = ScheduleSource::named("1F1B", 2);
  const Microbatches batch = random_batch(2, 6, 5, 1);
  LocalWorld world(2);
  std::vector<std::future<void>> ranks;
  for (int32_t r = 0; r < 2; ++r) {
    ranks.push_back(std::async(std::launch::async, [&, r] {
      Transport& transport = world.transport(Rank(r));
      Runner good(transport, stages_on(model, source.placement(), Rank(r)),
                  runner_options(model, {.source = source}));
      Runner bad(transport, stages_on(broken, source.placement(), Rank(r)),
                 runner_options(broken, {.source = source}));
      const Microbatches own = part_of(batch, source.placement(), Rank(r));
      EXPECT_NO_THROW(good.step(own, {.microbatches = 2}));
      EXPECT_THROW(bad.step(own, {.microbatches = 2}), Error);
      EXPECT_NO_THROW(good.step(own, {.microbatches = 2}));
      EXPECT_THROW(bad.step(own, {.microbatches = 2}), Error);
      EXPECT_NO_THROW(good.step(own, {.microbatches = 2}));
    }));
  }
  for (auto& rank : ranks) rank.get();
}

TEST(RandomSourceTest, StagesDrawFromTheProcessIfAsked) {
  TestModel model = chain_model(1);
  std::vector<at::Tensor> drawn;
  const auto inner = model.bodies[0].forward;
  model.bodies[0].forward = [&, inner](const Args& args, const Kwargs& kwargs) {
    drawn.push_back(at::rand_like(args[0].toTensor()));
    return inner(args, kwargs);
  };
  const Microbatches batch = random_batch(1, 3, 5, 1);
  auto generator = at::detail::getDefaultCPUGenerator();
  const auto draw = [&](PipelineOptions options) {
    generator.set_current_seed(7);
    drawn.clear();
    Pipeline pipeline = make_pipeline(model, std::move(options));
    pipeline.step(batch);
    return drawn.at(0);
  };
  generator.set_current_seed(7);
  const at::Tensor expected = at::rand_like(batch.inputs[0].args[0].toTensor());
  EXPECT_TRUE(at::equal(draw({.random = RandomSource::kProcess}), expected));
  EXPECT_FALSE(at::equal(draw({}), expected));
}

TEST(FinishForward, TakesALossThatTheHandlerHasMade) {
  TestModel model = chain_model(2);
  Pipeline pipeline = make_pipeline(model, {.schedule = "GPipe"});
  const Microbatches batch = random_batch(2, 6, 5, 1);
  pipeline.step(batch);
  const std::vector<at::Tensor> expected = take_grads(model.bodies);

  const Loss loss = model.loss;
  model.loss = [](const c10::IValue&, const c10::IValue&, const Kwargs&) -> c10::IValue {
    throw std::runtime_error("the handler makes the loss");
  };
  Pipeline driven = make_pipeline(model, {.schedule = "GPipe"});
  driven.callbacks().replace(ActionType::kForward, [&](ActionContext& context) {
    const c10::IValue output = context.stage().forward(context.microbatch(), context.take_inputs(),
                                                       context.forward_options());
    if (!context.stage().is_last()) return context.finish_forward(output);
    const auto m = context.microbatch().position();
    context.finish_forward(output, loss(output, batch.targets[m], {}), 0);
  });
  const StepResult result = driven.step(batch);
  EXPECT_EQ(result.losses.size(), 2U);
  const std::vector<at::Tensor> grads = take_grads(model.bodies);
  ASSERT_EQ(grads.size(), expected.size());
  for (std::size_t i = 0; i < grads.size(); ++i) EXPECT_TRUE(at::equal(grads[i], expected[i]));
}

}  // namespace
}  // namespace stagecraft
