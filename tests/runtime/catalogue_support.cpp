#include "tests/runtime/catalogue_support.h"

#include <mutex>
#include <utility>

#include <gtest/gtest.h>

#include "tests/runtime/harness.h"
#include "tests/support/reference.h"

namespace stagecraft {

namespace {
constexpr double kTolerance = 1e-6;
}

WholeStep train_whole(const models::WholeModel& model, const Args& args, const Kwargs& kwargs,
                      const at::Tensor& target) {
  take_grads(model.stages.bodies);
  const at::Tensor output = model.forward(args, kwargs).toTensor();
  const at::Tensor loss = model.stages.loss(output, target, {});
  loss.backward();
  return {output.detach(), loss.detach(), take_grads(model.stages.bodies)};
}

std::string difference(const StepResult& result, const std::vector<at::Tensor>& grads,
                       const WholeStep& expected) {
  std::string found = difference("output", result.output.toTensor(), expected.output, kTolerance);
  if (found.empty()) found = difference("loss", result.loss(), expected.loss, kTolerance);
  if (found.empty()) found = difference("gradient", grads, expected.grads, kTolerance);
  return found;
}

void train_everywhere(const models::WholeModel& model, const ScheduleSource& source,
                      const Args& args, const Kwargs& kwargs, const at::Tensor& target,
                      int32_t microbatches) {
  const WholeStep expected = train_whole(model, args, kwargs, target);
  const StepOptions options{.microbatches = microbatches};
  Pipeline pipeline = make_pipeline(model.stages, {.source = source});
  StepResult result = pipeline.step(args, kwargs, target, options);
  const std::vector<at::Tensor> grads = take_grads(model.stages.bodies);
  EXPECT_EQ(difference(result, grads, expected), "");
  EXPECT_EQ(num_pending(pipeline), 0U);

  const Placement& placement = source.placement();
  const Rank first = placement.get_rank(StageId(0));
  const Rank last = placement.get_rank(StageId(placement.num_stages() - 1));
  StepResult spmd;
  run_spmd(source, model.stages, {}, [&](Runner& runner, Transport& transport) {
    const bool has_first = transport.rank() == first;
    const bool has_last = transport.rank() == last;
    StepResult own = runner.step(has_first ? args : Args(), has_first ? kwargs : Kwargs(),
                                 has_last ? c10::IValue(target) : c10::IValue(), options);
    if (has_last) {
      spmd = std::move(own);
    } else {
      EXPECT_TRUE(own.output.isNone());
      EXPECT_TRUE(own.losses.empty());
    }
  });
  EXPECT_EQ(difference("gradient of the ranks' program", take_grads(model.stages.bodies), grads),
            "");
  EXPECT_EQ(difference("output", spmd.output, result.output), "");
  EXPECT_EQ(difference("loss", spmd.losses, result.losses), "");
}

}  // namespace stagecraft
