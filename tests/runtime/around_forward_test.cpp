// StageOptions::around_forward in whole pipelines.

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "stagecraft/base/error.h"
#include "tests/runtime/harness.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

using Forward = std::function<void()>;

// On all ranks' threads, with microbatches of different shapes; results have the same bits.
TEST(AroundForwardOfAPipeline, IsThereForEveryForward) {
  for (const ScheduleCase& shape : training_cases(2)) {
    for (const bool recompute : {false, true}) {
      SCOPED_TRACE(to_string(shape));
      TestModel model = chain_model(shape.stages());
      std::mutex mutex;
      std::vector<std::string> seen;
      for (int32_t s = 0; s < shape.stages(); ++s) {
        model.options.push_back(
            {.recompute = recompute,
             .around_forward = [&, s](const ForwardInfo& info, const Forward& forward) {
               EXPECT_EQ(info.stage, StageId(s));
               forward();
               const std::lock_guard lock(mutex);
               seen.push_back(std::to_string(s) + "F" + std::to_string(info.microbatch.value()) +
                              (info.is_training ? "" : " eval") +
                              (info.is_recomputation ? " again" : ""));
             }});
      }
      const Microbatches batch = random_batch(shape.microbatches, 3 * shape.microbatches + 1, 5, 1);
      Pipeline pipeline = make_pipeline(model, shape);
      EXPECT_EQ(check_step(pipeline, model, batch), "");
      std::vector<std::string> steps;
      std::vector<std::string> evals;
      for (int32_t s = 0; s < shape.stages(); ++s) {
        for (int32_t m = 0; m < shape.microbatches; ++m) {
          const std::string text = std::to_string(s) + "F" + std::to_string(m);
          steps.push_back(text);
          if (recompute) steps.push_back(text + " again");
          evals.push_back(text + " eval");
        }
      }
      // The reference runs forwards, too.
      EXPECT_THAT(seen, testing::IsSupersetOf(steps));
      seen.clear();
      pipeline.step(batch);
      EXPECT_THAT(seen, testing::UnorderedElementsAreArray(steps));
      seen.clear();
      pipeline.eval(batch);
      EXPECT_THAT(seen, testing::UnorderedElementsAreArray(evals));
    }
  }
}

TEST(AroundForwardOfAPipeline, AWrongScopeFailsTheStep) {
  TestModel model = chain_model(2);
  bool skips = true;
  model.options.resize(2);
  model.options[1].around_forward = [&](const ForwardInfo& info, const Forward& forward) {
    if (!skips || info.microbatch != MicrobatchId(2)) forward();
  };
  Pipeline pipeline = make_pipeline(model, {.schedule = "1F1B", .ranks = 2});
  const Microbatches batch = random_batch(4, 8, 5, 1);
  EXPECT_ERROR(pipeline.step(batch), StageError, "must call forward once, but called it 0 times");
  skips = false;
  EXPECT_EQ(check_step(pipeline, model, batch), "");
}

}  // namespace
}  // namespace stagecraft
