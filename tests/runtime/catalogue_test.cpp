#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <c10/core/GradMode.h>

#include "stagecraft/base/error.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/tree/tree.h"
#include "tests/runtime/catalogue_support.h"
#include "tests/runtime/faults.h"
#include "tests/runtime/harness.h"
#include "tests/support/expect_error.h"
#include "tests/support/models.h"

// What PyTorch's own tests of stages and of schedules in one process cover (test_stage.py,
// test_schedule.py), one test here for each there; catalogue_ranks_test.cpp has those of several
// processes. Both run as one pipeline and as a program a rank; the reference is the uncut model on
// the whole batch, as theirs is, and the cut loop for the bits.

namespace stagecraft {
namespace {

constexpr int64_t kCatalogueWidth = 24;
constexpr int64_t kCatalogueRows = 16;

const std::vector<std::string> kOneStageSchedules = {"1F1B", "GPipe", "Interleaved1F1B",
                                                     "InterleavedZeroBubble", "LoopedBFS"};

// StageTest::test_manual
TEST(StageCatalogue, Manual) {
  const models::WholeModel model = models::multi_mlp(kCatalogueWidth, 2);
  const at::Tensor x = random_tensor({32, kCatalogueWidth}, 1);
  const at::Tensor expected = model.forward({x}, {}).toTensor();
  Pipeline pipeline = make_pipeline(model.stages, {.schedule = "GPipe"});
  EXPECT_EQ(difference("output", pipeline.eval({x}, {}, {}, {.microbatches = 8}).output.toTensor(),
                       expected.detach(), 1e-6),
            "");
  const ScheduleSource source = ScheduleSource::named("GPipe", 2);
  run_spmd(source, model.stages, {}, [&](Runner& runner, Transport& transport) {
    const bool is_first = transport.rank() == Rank(0);
    const StepResult result = runner.eval(is_first ? Args{x} : Args{}, {}, {}, {.microbatches = 8});
    if (is_first) {
      EXPECT_TRUE(result.output.isNone());
    } else {
      EXPECT_EQ(difference("output", result.output.toTensor(), expected.detach(), 1e-6), "");
    }
  });
}

// StageTest::test_custom_dw_with_fb_schedule
TEST(StageCatalogue, CustomDwWithFbSchedule) {
  models::WholeModel model = models::multi_mlp(kCatalogueWidth, 2);
  std::array<std::atomic<int>, 2> made = {};
  std::array<std::atomic<int>, 2> called = {};
  for (std::size_t s = 0; s < 2; ++s) {
    model.stages.options.push_back({.weight_work = [&, s] {
      ++made[s];
      return [&, s] { ++called[s]; };
    }});
  }
  for (const char* name : {"GPipe", "1F1B"}) {
    for (std::size_t s = 0; s < 2; ++s) made[s] = called[s] = 0;
    Pipeline pipeline = make_pipeline(model.stages, {.schedule = name});
    pipeline.step(random_batch(4, kCatalogueRows, kCatalogueWidth, 1));
    for (std::size_t s = 0; s < 2; ++s) {
      EXPECT_EQ(made[s], 4);
      EXPECT_EQ(called[s], 4);
    }
    take_grads(model.stages.bodies);
  }
}

// StageTest::test_output_chunks_memory_usage
TEST(StageCatalogue, OutputChunksMemoryUsage) {
  models::WholeModel model = models::multi_mlp(kCatalogueWidth, 2);
  const auto probe = std::make_shared<Probe>();
  add_probe(model.stages, probe);
  const Microbatches batch = random_batch(4, kCatalogueRows, kCatalogueWidth, 1);
  const ScheduleSource source = ScheduleSource::named("GPipe", 2);
  run_spmd(source, model.stages, {}, [&](Runner& runner, Transport& transport) {
    const Microbatches part = part_of(batch, source.placement(), transport.rank());
    const StepResult result = runner.step(part, {.outputs = OutputMode::kEach});
    EXPECT_EQ(runner.stage(StageId(transport.rank().value())).num_pending(), 0U);
    EXPECT_EQ(result.outputs.size(), transport.rank() == Rank(1) ? 4U : 0U);
    transport.barrier(Deadline::after(std::chrono::seconds(20)));
    if (transport.rank() == Rank(1)) {
      EXPECT_EQ(probe->take_num_alive(), 4U) << "the outputs that were asked for";
    }
    transport.barrier(Deadline::after(std::chrono::seconds(20)));
    runner.step(part, {.outputs = OutputMode::kNone});
    transport.barrier(Deadline::after(std::chrono::seconds(20)));
    if (transport.rank() == Rank(1)) {
      EXPECT_EQ(probe->take_num_alive(), 0U);
    }
  });
}

// StageNegativeTest::test_shape_prop_mismatch. There is nothing to mismatch here: what changes from
// one step to the next is right. Only gradients that do not fit their values are wrong.
TEST(StageCatalogue, ShapePropMismatch) {
  const models::WholeModel model = models::multi_mlp(kCatalogueWidth, 2);
  Pipeline pipeline = make_pipeline(model.stages, {.schedule = "GPipe"});
  EXPECT_EQ(check_step(pipeline, model.stages, random_batch(4, kCatalogueRows, kCatalogueWidth, 1)),
            "");
  EXPECT_EQ(check_step(pipeline, model.stages,
                       random_batch(4, 2 * kCatalogueRows + 1, kCatalogueWidth, 2)),
            "");
  EXPECT_EQ(check_step(pipeline, model.stages, random_batch(3, 4, kCatalogueWidth, 3)), "");

  // What the model itself cannot take is its own error, with the place.
  const at::Tensor ints = at::ones({kCatalogueRows, kCatalogueWidth}, at::kInt);
  EXPECT_ERROR(pipeline.step({ints}, {}, ints.to(at::kFloat), {.microbatches = 4}), StageError,
               "rank 0, stage 0, microbatch 0, action 0F0: ");
  const at::Tensor narrow = at::ones({kCatalogueRows, kCatalogueWidth - 1});
  EXPECT_ERROR(pipeline.step({narrow}, {}, narrow, {.microbatches = 4}), StageError,
               "rank 0, stage 0, microbatch 0, action 0F0: ");

  // Another shape or dtype between stages, from one step to the next.
  TestModel changing = model.stages;
  std::atomic<int> mode = 0;
  changing.bodies[0].forward = [&, inner = changing.bodies[0].forward](const Args& args,
                                                                       const Kwargs& kwargs) {
    const at::Tensor y = inner(args, kwargs).toTensor();
    return c10::IValue(mode == 1 ? y.flatten() : mode == 2 ? y.to(at::kDouble) : y);
  };
  changing.bodies[1].forward = [&, inner = changing.bodies[1].forward](const Args& args,
                                                                       const Kwargs& kwargs) {
    const at::Tensor x = args[0].toTensor();
    return inner({x.to(at::kFloat).reshape({-1, kCatalogueWidth})}, kwargs);
  };
  Pipeline other = make_pipeline(changing, {.schedule = "1F1B"});
  for (const int each : {0, 1, 2, 0}) {
    mode = each;
    EXPECT_EQ(check_step(other, changing, random_batch(4, kCatalogueRows, kCatalogueWidth, 1)), "")
        << each;
  }

  other.callbacks().replace(ActionType::kBackward, [](ActionContext& context) {
    std::vector<c10::IValue> grads = context.stage().backward(
        context.microbatch(), context.take_output_grads(), context.loss_weight());
    if (context.rank() == Rank(1)) grads[0] = grads[0].toTensor().flatten();
    context.finish_backward(std::move(grads));
  });
  const auto error = find_stage_error(
      thrown_by([&] { other.step(random_batch(4, kCatalogueRows, kCatalogueWidth, 1)); }));
  ASSERT_TRUE(error);
  EXPECT_TRUE(is_a<MetadataError>(error->cause()));
  EXPECT_EQ(error->place().action, "0B0");
}

// StageNegativeTest::test_custom_dw_errors
TEST(StageCatalogue, CustomDwErrors) {
  const models::WholeModel model = models::multi_mlp(kCatalogueWidth, 1);
  for (const bool has_own : {false, true}) {
    StageOptions options;
    if (has_own) options.weight_work = [] { return std::function<void()>(); };
    Stage stage(StageId(0), 1, model.stages.bodies[0], options);
    EXPECT_ERROR(stage.backward_weight(MicrobatchId(0)), ArgumentError,
                 "weight backward of microbatch 0 without its forward");
    stage.forward(MicrobatchId(0), {{random_tensor({2, kCatalogueWidth}, 1)}, {}});
    EXPECT_ERROR(stage.backward_weight(MicrobatchId(0)), ArgumentError,
                 "without its input backward");
    stage.backward_input(MicrobatchId(0), {random_tensor({2, kCatalogueWidth}, 2)});
    stage.backward_weight(MicrobatchId(0));
    EXPECT_THROW(stage.backward_weight(MicrobatchId(0)), ArgumentError);
    take_grads(model.stages.bodies);
  }
}

// ScheduleTest::test_schedule_with_single_stage
TEST(ScheduleCatalogue, ScheduleWithSingleStage) {
  for (const std::string& name : kOneStageSchedules) {
    SCOPED_TRACE(name);
    const models::WholeModel model = models::multi_mlp(kCatalogueWidth, 1);
    Pipeline pipeline = make_pipeline(model.stages, {.source = ScheduleSource::named(name, 1, 1)});
    for (uint64_t iteration = 0; iteration < 2; ++iteration) {
      const at::Tensor x = random_tensor({kCatalogueRows, kCatalogueWidth}, 2 * iteration);
      const at::Tensor y = random_tensor({kCatalogueRows, kCatalogueWidth}, 2 * iteration + 1);
      const WholeStep expected = train_whole(model, {x}, {}, y);
      const StepResult result = pipeline.step({x}, {}, y, {.microbatches = 2});
      EXPECT_EQ(difference(result, take_grads(model.stages.bodies), expected), "");
    }
  }
}

// ScheduleTest::test_schedule_eval_then_train
TEST(ScheduleCatalogue, ScheduleEvalThenTrain) {
  for (const std::string& name : kOneStageSchedules) {
    for (const int32_t ranks : {1, 2}) {
      SCOPED_TRACE(name + ", " + std::to_string(ranks) + " ranks");
      const models::WholeModel model = models::multi_mlp(kCatalogueWidth, ranks);
      const Microbatches batch = random_batch(2, kCatalogueRows, kCatalogueWidth, 1);
      Pipeline pipeline =
          make_pipeline(model.stages, {.source = ScheduleSource::named(name, ranks, 1)});
      for (int i = 0; i < 2; ++i) {
        const StepResult result = pipeline.eval(batch);
        EXPECT_EQ(result.losses.size(), 2U);
        for (const at::Tensor& grad : take_grads(model.stages.bodies)) {
          EXPECT_FALSE(grad.defined());
        }
      }
      for (int i = 0; i < 2; ++i) EXPECT_EQ(check_step(pipeline, model.stages, batch), "");
    }
  }
}

// A step of a schedule of one's own, its result as the whole model's, and nothing left of it.
void expect_right_without_leak(const std::string& csv, int32_t stages, int32_t microbatches) {
  models::WholeModel model = models::multi_mlp(kCatalogueWidth, stages);
  const auto probe = std::make_shared<Probe>();
  add_probe(model.stages, probe);
  const ScheduleSource source = ScheduleSource::fixed(parse_csv(csv));
  const at::Tensor x = random_tensor({kCatalogueRows, kCatalogueWidth}, 1);
  const at::Tensor y = random_tensor({kCatalogueRows, kCatalogueWidth}, 2);
  train_everywhere(model, source, {x}, {}, y, microbatches);
  EXPECT_EQ(probe->take_num_alive(), 0U);
}

// TestScheduleLowering::test_grad_with_v_schedule: two stages side by side on one rank hand over
// their values by themselves.
TEST(ScheduleCatalogue, GradWithVSchedule) {
  expect_right_without_leak("0F0,0F1,1F0,1F1,1B0,1B1,0B0,0B1\n", 2, 2);
  expect_right_without_leak("0F0,1F0,1B0,0B0,0F1,1F1,1I1,0I1,0W1,1W1\n", 2, 2);
  expect_right_without_leak(
      "0F0,0F1,,,3F0,3F1,3B0,3B1,,,0B0,0B1\n,1F0,1F1,2F0,2F1,,2B0,2B1,1B0,1B1\n", 4, 2);
}

// TestScheduleLowering::test_grad_with_split_b_w
TEST(ScheduleCatalogue, GradWithSplitBW) {
  expect_right_without_leak("0F0,0F1,0I0,0I1,0W0,0W1\n", 1, 2);
}

}  // namespace
}  // namespace stagecraft
