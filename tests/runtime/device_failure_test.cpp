// Failures of a device, against one that is not there: tests/support/fake_device_probe.h.

#include <cstdint>
#include <memory>
#include <string>

#include <gmock/gmock.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/sum.h>
#include <c10/util/Exception.h>

#include "stagecraft/base/device_error.h"
#include "stagecraft/runtime/pipeline.h"
#include "tests/runtime/harness.h"
#include "tests/support/expect_error.h"
#include "tests/support/fake_device_probe.h"
#include "tests/support/fake_graph_device.h"
#include "tests/support/models.h"

namespace stagecraft {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr uint64_t kFailureSeed = 5;
constexpr int64_t kMiB = 1 << 20;

class DeviceFailure : public testing::Test {
 protected:
  const FakeDeviceProbes probes_{1000};
};

/// A model whose stage 1 calls `hook` before each forward.
TestModel hooked_model(const std::function<void()>& hook) {
  TestModel model = chain_model(2);
  model.bodies[1].forward = [inner = model.bodies[1].forward, hook](
                                const Args& args, const Kwargs& kwargs) -> c10::IValue {
    hook();
    return inner(args, kwargs);
  };
  return model;
}

TEST_F(DeviceFailure, OutOfMemoryNamesTheActionTheBytesAndWhatWouldSaveThem) {
  const auto calls = std::make_shared<int>(0);
  const auto limit = std::make_shared<int>(2);
  const TestModel model = hooked_model([calls, limit] {
    // Each forward keeps 10 MiB.
    FakeDeviceProbes::set_memory({.allocated = 10 * kMiB * *calls, .reserved = 64 * kMiB});
    if (++*calls > *limit) {
      TORCH_CHECK_WITH(OutOfMemoryError, false,
                       "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...\nadvice");
    }
  });
  // All forwards of stage 0, then all of stage 1.
  Pipeline pipeline =
      make_pipeline(model, {.schedule = "LoopedBFS", .ranks = 1, .seed = kFailureSeed});
  try {
    pipeline.step(random_batch(4, 8, 5, 0));
    FAIL() << "the step did not fail";
  } catch (const StageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 0, stage 1, microbatch 2, action 1F2: out of memory: "
                                        "2.0 GiB asked, 1.0 MiB free on the device; this process "
                                        "has allocated 20.0 MiB and reserved 64.0 MiB"));
    EXPECT_THAT(error.what(), HasSubstr("stage 1 has 2 microbatches in flight, 10.0 MiB each: one "
                                        "less saves 10.0 MiB, recompute of the stage about 10.0 "
                                        "MiB"));
    EXPECT_THAT(error.what(), Not(HasSubstr("advice")));
    try {
      std::rethrow_exception(error.cause());
    } catch (const OutOfMemoryError& cause) {
      EXPECT_EQ(cause.asked(), 2048 * kMiB);
      EXPECT_EQ(cause.free(), kMiB);
    }
  }
  EXPECT_EQ(FakeDeviceProbes::num_releases(), 1);
  // A smaller step works, and has the gradients of the loop.
  *limit = 1 << 30;
  EXPECT_EQ(check_step(pipeline, model, random_batch(2, 4, 5, 1), {kFailureSeed, 0}), "");
}

TEST_F(DeviceFailure, OutOfMemoryOnOneRankEndsAllRanks) {
  const TestModel model = hooked_model([] {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate 20.00 MiB.");
  });
  Pipeline pipeline = make_pipeline(model, PipelineOptions{.ranks = 2});
  EXPECT_ERROR(pipeline.step(random_batch(4, 8, 5, 0)), StageError,
               "rank 1, stage 1, microbatch 0, action 1F0: out of memory: 20.0 MiB asked");
}

TEST_F(DeviceFailure, AnAsynchronousErrorNamesTheActionsSinceTheLastGoodPoint) {
  const auto fails = std::make_shared<bool>(true);
  const TestModel model = hooked_model([calls = std::make_shared<int>(0), fails] {
    if (++*calls < 3 || !*fails) return;
    FakeDeviceProbes::set_failure("CUDA error: device-side assert triggered");
    throw std::runtime_error("CUDA error: device-side assert triggered\nmore");
  });
  Pipeline pipeline = make_pipeline(model, {.schedule = "LoopedBFS", .ranks = 1});
  // Each with two marks, two UNSHARDs, 0F0, 0F1 and 0F2 are known to be complete.
  FakeDeviceProbes::set_reached(10);
  EXPECT_ERROR(
      pipeline.step(random_batch(4, 8, 5, 0)), StageError,
      "reports an error of a kernel that was launched earlier: CUDA error: device-side "
      "assert triggered; actions since the last good point: rank 0: 0F3, 1F0, 1F1, 1F2; this "
      "process cannot use the device any more");
  // Neither can the next step, which says why.
  EXPECT_ERROR(pipeline.step(random_batch(4, 8, 5, 0)), StageError,
               "the device failed in an earlier step: the device cpu reports an error");
}

// The kernel fails after the last action was launched, and torch reports it in the next call, which
// merges the outputs.
TEST_F(DeviceFailure, AnErrorThatShowsWhenResultsAreMergedIsExplained) {
  const auto calls = std::make_shared<int64_t>(0);
  TestModel model = chain_model(2);
  model.bodies[1].forward = [inner = model.bodies[1].forward, calls](
                                const Args& args, const Kwargs& kwargs) -> c10::IValue {
    // Outputs that cannot be merged stand for a call that the device refuses.
    const at::Tensor out = inner(args, kwargs).toTensor();
    return out.narrow(1, 0, ++*calls == 1 ? 1 : 2);
  };
  model.loss = [](const at::Tensor& y, const at::Tensor&) { return y.sum(); };
  Pipeline pipeline = make_pipeline(model, PipelineOptions{.ranks = 2});
  EXPECT_ERROR(pipeline.step(random_batch(4, 8, 5, 0)), MetadataError, "cannot concatenate");
  *calls = 0;
  FakeDeviceProbes::set_reached(0);
  FakeDeviceProbes::set_late_failure("CUDA error: device-side assert triggered");
  EXPECT_ERROR(pipeline.step(random_batch(4, 8, 5, 0)), StageError,
               "rank 1: the device cpu reports an error of a kernel that was launched earlier: ");
  EXPECT_ERROR(pipeline.step(random_batch(4, 8, 5, 0)), StageError,
               "the device failed in an earlier step: the device cpu reports an error");
}

TEST_F(DeviceFailure, AnErrorThatShowsBetweenActionsIsExplained) {
  const FakeGraphDevices graphs;
  const TestModel model = chain_model(2);
  Pipeline pipeline = make_pipeline(model, {.ranks = 2, .graphs = GraphMode::kOn});
  FakeDeviceProbes::set_reached(0);
  pipeline.step(random_batch(4, 8, 5, 0));
  take_grads(model.bodies);
  FakeDeviceProbes::set_failure("CUDA error: device-side assert triggered");
  EXPECT_ERROR(pipeline.step(random_batch(4, 8, 5, 0)), DeviceError,
               "assert triggered; actions since the last good point: rank 0: ");
}

TEST_F(DeviceFailure, ALostDeviceEndsAllRanksWithItsText) {
  const TestModel model = hooked_model([] {
    FakeDeviceProbes::set_failure("CUDA error: device is lost");
    throw std::runtime_error("CUDA error: device is lost");
  });
  Pipeline pipeline = make_pipeline(model, PipelineOptions{.ranks = 2});
  EXPECT_ERROR(pipeline.step(random_batch(4, 8, 5, 0)), StageError,
               "cannot use the device any more");
}

TEST_F(DeviceFailure, OtherErrorsAreLeftAsTheyAre) {
  const TestModel model = hooked_model([] { throw std::runtime_error("broken"); });
  Pipeline pipeline = make_pipeline(model, PipelineOptions{.ranks = 2});
  try {
    pipeline.step(random_batch(4, 8, 5, 0));
    FAIL() << "the step did not fail";
  } catch (const StageError& error) {
    EXPECT_STREQ(error.what(), "rank 1, stage 1, microbatch 0, action 1F0: broken");
  }
}

}  // namespace
}  // namespace stagecraft
