#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stagecraft/base/error.h"
#include "stagecraft/stage/memory_meter.h"
#include "tests/runtime/faults.h"
#include "tests/runtime/harness.h"
#include "tests/support/expect_error.h"
#include "tests/support/models.h"

// #136380, #128910: memory only for what is in flight, and its peak is known beforehand.

namespace stagecraft {
namespace {

constexpr int64_t kWidth = 32;
constexpr int64_t kRows = 8;  // a microbatch's

const StepOptions kMeasured{.outputs = OutputMode::kNone, .measure_memory = true};
const StepOptions kPlain{.outputs = OutputMode::kNone};

Microbatches batch_of(int32_t microbatches) {
  return random_batch(microbatches, kRows * microbatches, kWidth, 1);
}

// On one rank everything is known: what an independent meter sees at its peak is what was
// predicted, to the byte.
TEST(UsersMemory, TheSumOverLiveTensorsIsThePredictedPeak) {
  for (const ScheduleCase& each : training_cases(1)) {
    for (const int32_t microbatches : {2, 3, 6}) {
      SCOPED_TRACE(to_string(each) + ", but " + std::to_string(microbatches));
      const models::WholeModel model = models::multi_mlp(kWidth, each.stages());
      Pipeline pipeline = make_pipeline(model.stages, each);
      pipeline.step(batch_of(2));  // gradients are there from now on
      pipeline.step(batch_of(2), kMeasured);
      const MemoryEstimate estimate = pipeline.peak_memory_estimate(microbatches);

      const Microbatches batch = batch_of(microbatches);
      pipeline.step(batch, kPlain);  // what is kept for the next step of the same shape is there
      MemoryMeter meter(1);
      std::vector<int64_t> live;
      pipeline.callbacks().observe(
          [&](Rank, Action, ActionPhase) { live.push_back(meter.current(0)); });
      int64_t peak = 0;
      {
        const MemoryMeter::Scope scope(meter, 0);
        pipeline.step(batch, kPlain);
        peak = meter.peak(0);
      }
      EXPECT_EQ(estimate.ranks[0].activations, peak);
      EXPECT_LE(*std::max_element(live.begin(), live.end()), peak);
      EXPECT_FALSE(estimate.ranks[0].at.empty());
      int64_t parameters = 0;
      for (const StageParameter& parameter : parameters_of(model.stages.bodies)) {
        parameters += static_cast<int64_t>(parameter.tensor.nbytes());
      }
      EXPECT_EQ(estimate.ranks[0].parameters, parameters);
      EXPECT_EQ(estimate.ranks[0].gradients, parameters);
      EXPECT_EQ(estimate.peak(), peak + 2 * parameters);
    }
  }
}

// Over several ranks a value on its way counts for neither end, and it depends on time how many
// there are; at each end a value is counted from its action on. So the peak of each rank is that
// which was predicted up to one value that a stage gets or gives.
TEST(UsersMemory, OverSeveralRanksUpToOneValueOnItsWay) {
  const int64_t value = kRows * kWidth * static_cast<int64_t>(sizeof(float));
  for (const int32_t ranks : {2, 3, 4}) {
    for (const ScheduleCase& each : training_cases(ranks)) {
      SCOPED_TRACE(to_string(each));
      const models::WholeModel model = models::multi_mlp(kWidth, each.stages());
      Pipeline pipeline = make_pipeline(model.stages, each);
      pipeline.step(batch_of(each.microbatches));
      pipeline.step(batch_of(each.microbatches), kMeasured);
      for (const int32_t microbatches : {each.microbatches, 2 * each.microbatches + 1}) {
        const MemoryEstimate estimate = pipeline.peak_memory_estimate(microbatches);
        pipeline.step(batch_of(microbatches), kMeasured);
        const StepReport report = pipeline.report();
        ASSERT_EQ(estimate.ranks.size(), report.ranks.size());
        for (std::size_t r = 0; r < report.ranks.size(); ++r) {
          ASSERT_TRUE(report.ranks[r].peak_memory);
          EXPECT_NEAR(static_cast<double>(estimate.ranks[r].activations),
                      static_cast<double>(*report.ranks[r].peak_memory), static_cast<double>(value))
              << "rank " << r;
        }
      }
    }
  }
}

// A rank of 1F1B holds as many microbatches as there are ranks from it on, not all of them.
TEST(UsersMemory, PeaksDependOnWhatIsInFlight) {
  const models::WholeModel model = models::multi_mlp(kWidth, 4);
  auto peaks = [&](const char* schedule, int32_t microbatches) {
    Pipeline pipeline = make_pipeline(model.stages, {.schedule = schedule});
    pipeline.step(batch_of(microbatches));
    pipeline.step(batch_of(microbatches), kMeasured);
    std::vector<int64_t> result;
    for (const RankReport& rank : pipeline.report().ranks) result.push_back(*rank.peak_memory);
    return result;
  };
  const std::vector<int64_t> few = peaks("1F1B", 8);
  const std::vector<int64_t> many = peaks("1F1B", 24);
  for (std::size_t r = 0; r < 4; ++r) {
    // What grows is the loss of each microbatch, on the last rank.
    EXPECT_LE(many[r], few[r] + 16 * 64) << r;
  }
  EXPECT_GT(few[0], few[3]);
  const std::vector<int64_t> all = peaks("GPipe", 24);
  EXPECT_GT(all[0], 2 * many[0]);
}

// After a step nothing of it is held, whatever the schedule; outputs only if they were asked for.
TEST(UsersMemory, NothingOutlivesTheStep) {
  for (const int32_t ranks : {1, 2, 3}) {
    for (const ScheduleCase& each : training_cases(ranks)) {
      SCOPED_TRACE(to_string(each));
      const auto probe = std::make_shared<Probe>();
      const TestModel model = probed_chain(each.stages(), probe);
      Pipeline pipeline = make_pipeline(model, each);
      pipeline.step(random_batch(each.microbatches, 12, 5, 1), kPlain);
      EXPECT_EQ(probe->take_num_alive(), 0U);
      {
        const StepResult merged = pipeline.step(random_batch(each.microbatches, 12, 5, 1));
        EXPECT_EQ(probe->take_num_alive(), 0U) << "the merged output is a copy";
      }
      take_grads(model.bodies);
    }
  }
}

TEST(UsersMemory, AnEstimateNeedsAMeasurement) {
  const TestModel model = chain_model(2);
  Pipeline pipeline = make_pipeline(model, {.schedule = "1F1B"});
  EXPECT_ERROR(pipeline.peak_memory_estimate(4), ArgumentError, "measure_memory");
  pipeline.step(random_batch(4, 8, 5, 1));
  EXPECT_THROW(pipeline.peak_memory_estimate(4), ArgumentError);
  EXPECT_FALSE(pipeline.report().ranks[0].peak_memory);
  take_grads(model.bodies);
}

// Measuring changes no bit.
TEST(UsersMemory, MeasuringChangesNothing) {
  for (const ScheduleCase& each : training_cases(3)) {
    SCOPED_TRACE(to_string(each));
    const TestModel model = chain_model(each.stages());
    const Microbatches batch = random_batch(each.microbatches, 13, 5, 1);
    Pipeline pipeline = make_pipeline(model, each);
    pipeline.step(batch, kMeasured);
    const std::vector<at::Tensor> grads = take_grads(model.bodies);
    EXPECT_EQ(difference("gradient", grads, cut_grads(model, batch, pipeline.recording().schedule)),
              "");
  }
}

}  // namespace
}  // namespace stagecraft
