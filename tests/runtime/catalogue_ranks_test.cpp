#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ops/mse_loss.h>
#include <c10/core/GradMode.h>

#include "stagecraft/schedule/csv.h"
#include "stagecraft/schedule/schedule.h"
#include "tests/runtime/catalogue_support.h"
#include "tests/runtime/faults.h"
#include "tests/runtime/harness.h"
#include "tests/support/models.h"

// What PyTorch's own tests of schedules over several processes cover (test_schedule_multiproc.py),
// one test here for each there, on ranks that are threads: as one pipeline and, where it matters,
// as a program a rank. Theirs are 512 wide with 64 rows; the results do not depend on it.

namespace stagecraft {
namespace {

constexpr int64_t kCatalogueRanksWidth = 24;
constexpr int64_t kCatalogueRanksRows = 32;
constexpr int32_t kRanks = 4;

struct Named {
  std::string name;
  int32_t stages_per_rank;

  ScheduleSource source() const { return ScheduleSource::named(name, kRanks, stages_per_rank); }
  int32_t stages() const { return kRanks * stages_per_rank; }
};
const std::vector<Named> kSingle = {{"GPipe", 1}, {"1F1B", 1}};
const std::vector<Named> kFive = {{"GPipe", 1},
                                  {"1F1B", 1},
                                  {"Interleaved1F1B", 2},
                                  {"LoopedBFS", 2},
                                  {"InterleavedZeroBubble", 2}};

at::Tensor inputs(uint64_t seed = 1) {
  return random_tensor({kCatalogueRanksRows, kCatalogueRanksWidth}, seed);
}

// ScheduleTest::test_forward_only
TEST(ScheduleRanksCatalogue, ForwardOnly) {
  const models::WholeModel model = models::multi_mlp(kCatalogueRanksWidth, kRanks);
  Pipeline pipeline = make_pipeline(model.stages, {.schedule = "ForwardOnly"});
  at::Tensor x = inputs();
  for (int i = 0; i < 20; ++i) {
    const at::Tensor expected = model.forward({x}, {}).toTensor().detach();
    const at::Tensor y = pipeline.eval({x}, {}, {}, {.microbatches = 4}).output.toTensor();
    ASSERT_EQ(difference("output", y, expected, 1e-6), "") << i;
    EXPECT_FALSE(y.requires_grad());
    x = y;
  }

  const ScheduleSource source = ScheduleSource::named("ForwardOnly", kRanks);
  run_spmd(source, model.stages, {}, [&](Runner& runner, Transport& transport) {
    at::Tensor own = inputs();
    for (int i = 0; i < 20; ++i) {
      // Every rank asks for the result, which is the next input.
      const StepResult result = runner.eval(transport.rank() == Rank(0) ? Args{own} : Args{}, {},
                                            {}, {.microbatches = 4, .everywhere = true});
      own = result.output.toTensor();
    }
    EXPECT_EQ(difference("output", own, x), "");
  });
}

// ScheduleTest::test_eval_inference_mode
TEST(ScheduleRanksCatalogue, EvalInferenceMode) {
  for (const Named& each : kFive) {
    SCOPED_TRACE(each.name);
    const models::WholeModel model = models::multi_mlp(kCatalogueRanksWidth, each.stages());
    Pipeline pipeline = make_pipeline(model.stages, {.source = each.source()});
    for (const bool grad_mode : {true, false}) {
      const c10::AutoGradMode mode(grad_mode);
      const StepResult result =
          pipeline.eval({inputs(1)}, {}, inputs(2), {.microbatches = 2 * kRanks});
      EXPECT_EQ(result.losses.size(), static_cast<std::size_t>(2 * kRanks));
      EXPECT_FALSE(result.output.toTensor().requires_grad());
    }
    for (const at::Tensor& grad : take_grads(model.stages.bodies)) EXPECT_FALSE(grad.defined());
    EXPECT_EQ(num_pending(pipeline), 0U);
  }
}

// ScheduleTest::test_return_output
TEST(ScheduleRanksCatalogue, ReturnOutput) {
  for (const Named& each : kFive) {
    SCOPED_TRACE(each.name);
    const models::WholeModel model = models::multi_mlp(kCatalogueRanksWidth, each.stages());
    Pipeline pipeline = make_pipeline(model.stages, {.source = each.source()});
    const StepResult without = pipeline.step(
        {inputs(1)}, {}, inputs(2), {.microbatches = 2 * kRanks, .outputs = OutputMode::kNone});
    EXPECT_TRUE(without.output.isNone());
    EXPECT_TRUE(without.outputs.empty());
    const StepResult with = pipeline.step({inputs(1)}, {}, inputs(2), {.microbatches = 2 * kRanks});
    EXPECT_EQ(with.output.toTensor().size(0), kCatalogueRanksRows);
    take_grads(model.stages.bodies);
  }
}

// ScheduleTest::test_multi_iter
TEST(ScheduleRanksCatalogue, MultiIter) {
  for (const Named& each : kSingle) {
    SCOPED_TRACE(each.name);
    const models::WholeModel model = models::multi_mlp(kCatalogueRanksWidth, kRanks);
    Pipeline pipeline = make_pipeline(model.stages, {.source = each.source()});
    const Microbatches batch = random_batch(4, kCatalogueRanksRows, kCatalogueRanksWidth, 1);
    for (int i = 0; i < 20; ++i) ASSERT_EQ(check_step(pipeline, model.stages, batch), "");
    run_spmd(each.source(), model.stages, {}, [&](Runner& runner, Transport& transport) {
      for (int i = 0; i < 20; ++i) {
        runner.step(part_of(batch, each.source().placement(), transport.rank()),
                    {.microbatches = 4});
      }
    });
    take_grads(model.stages.bodies);
  }
}

// ScheduleTest::test_kwargs_with_tracer
TEST(ScheduleRanksCatalogue, KwargsWithTracer) {
  const models::WholeModel model = models::model_with_kwargs(kCatalogueRanksWidth);
  for (const Named& each : kSingle) {
    SCOPED_TRACE(each.name);
    const ScheduleSource source = ScheduleSource::named(each.name, 2);
    train_everywhere(model, source, {inputs(1)}, {{"y", inputs(2)}}, inputs(3), 4);

    // With the losses of the microbatches added up.
    Pipeline pipeline = make_pipeline(model.stages, {.source = source});
    const StepResult result = pipeline.step({inputs(1)}, {{"y", inputs(2)}}, inputs(3),
                                            {.microbatches = 4, .scale = LossScale::kSum});
    const WholeStep whole = train_whole(model, {inputs(1)}, {{"y", inputs(2)}}, inputs(3));
    EXPECT_EQ(difference("loss", result.loss(), whole.loss.mul(4), 1e-6), "");
    take_grads(model.stages.bodies);
  }
}

// ScheduleTest::test_grad_with_tracer: the traced model has a skip connection and a parameter that
// two stages use; here they are edges, in every schedule.
TEST(ScheduleRanksCatalogue, GradWithTracer) {
  for (const Named& each : kFive) {
    SCOPED_TRACE(each.name);
    const models::WholeModel model = models::example_code(kCatalogueRanksWidth, each.stages());
    train_everywhere(model, each.source(), {inputs(1)}, {}, inputs(2), 2 * kRanks);
  }
}

// ScheduleTest::test_grad_with_manual. Shapes are never given and never inferred.
TEST(ScheduleRanksCatalogue, GradWithManual) {
  for (const Named& each : kSingle) {
    SCOPED_TRACE(each.name);
    const models::WholeModel model = models::multi_mlp(kCatalogueRanksWidth, kRanks);
    train_everywhere(model, each.source(), {inputs(1)}, {}, inputs(2), 2 * kRanks);
  }
}

// ScheduleTest::test_grad_with_manual_interleaved
TEST(ScheduleRanksCatalogue, GradWithManualInterleaved) {
  for (const Named& each :
       {Named{"Interleaved1F1B", 2}, Named{"LoopedBFS", 2}, Named{"InterleavedZeroBubble", 2}}) {
    SCOPED_TRACE(each.name);
    models::WholeModel model = models::multi_mlp(kCatalogueRanksWidth, each.stages());
    const auto probe = std::make_shared<Probe>();
    add_probe(model.stages, probe);
    train_everywhere(model, each.source(), {inputs(1)}, {}, inputs(2), 8);
    EXPECT_EQ(probe->take_num_alive(), 0U) << "leaked";
  }
}

// ScheduleTest::test_schedule_with_weight_update_mlp_e2e
TEST(ScheduleRanksCatalogue, ScheduleWithWeightUpdateMlpE2e) {
  const Named each{"InterleavedZeroBubble", 2};
  const models::WholeModel model = models::multi_mlp_with_dw(kCatalogueRanksWidth, each.stages());
  train_everywhere(model, each.source(), {inputs(1)}, {}, inputs(2), 2);
}

// ScheduleTest::test_v_shape_schedules
TEST(ScheduleRanksCatalogue, VShapeSchedules) {
  for (const Named& each : {Named{"ZBVZeroBubble", 2}, Named{"DualPipeV", 2}}) {
    SCOPED_TRACE(each.name);
    const ScheduleSource source = each.source();
    EXPECT_EQ(source.placement().get_rank(StageId(0)), Rank(0));
    EXPECT_EQ(source.placement().get_rank(StageId(7)), Rank(0));
    const models::WholeModel model = models::multi_mlp(kCatalogueRanksWidth, 8);
    train_everywhere(model, source, {inputs(1)}, {}, inputs(2), 8);
  }
}

// ScheduleTest::test_custom_function_callback: F and OVERLAP_F_B made anew from their parts. A rank
// forwards two stages over 16 microbatches: 32 calls, some of them as a part of an overlap.
TEST(ScheduleRanksCatalogue, CustomFunctionCallback) {
  const Named each{"DualPipeV", 2};
  const models::WholeModel model = models::multi_mlp(kCatalogueRanksWidth, each.stages());
  const WholeStep expected = train_whole(model, {inputs(1)}, {}, inputs(2));
  Pipeline pipeline = make_pipeline(model.stages, {.source = each.source()});
  std::array<std::atomic<int>, kRanks> forwards = {};
  std::array<std::atomic<int>, kRanks> overlaps = {};
  auto forward = [](ActionContext& context) {
    context.finish_forward(context.stage().forward(context.microbatch(), context.take_inputs(),
                                                   context.forward_options()));
  };
  pipeline.callbacks().replace(ActionType::kForward, [&](ActionContext& context) {
    ++forwards[static_cast<std::size_t>(context.rank().value())];
    forward(context);
  });
  pipeline.callbacks().replace(ActionType::kOverlap, [&](ActionContext& context) {
    ++overlaps[static_cast<std::size_t>(context.rank().value())];
    forward(context);
    context.finish_backward(
        context.stage(1).backward(context.microbatch(1), context.take_output_grads(1),
                                  context.loss_weight(1)),
        1);
  });
  const StepResult result = pipeline.step({inputs(1)}, {}, inputs(2), {.microbatches = 16});
  EXPECT_EQ(difference(result, take_grads(model.stages.bodies), expected), "");
  for (std::size_t r = 0; r < kRanks; ++r) {
    EXPECT_EQ(forwards[r] + overlaps[r], 32) << r;
    EXPECT_GT(overlaps[r], 0) << r;
  }
}

// ScheduleTest::test_zero_bubble_with_model_kwargs: "bias" goes to stage 0 alone.
TEST(ScheduleRanksCatalogue, ZeroBubbleWithModelKwargs) {
  for (const Named& each : {Named{"InterleavedZeroBubble", 2}, Named{"Interleaved1F1B", 2}}) {
    SCOPED_TRACE(each.name);
    const models::WholeModel model = models::multi_mlp_kwargs(kCatalogueRanksWidth, each.stages());
    // One number for all rows, so that the mean of a microbatch is that of the batch.
    const at::Tensor bias =
        random_tensor({1, 1}, 3).expand({kCatalogueRanksRows, kCatalogueRanksWidth}).contiguous();
    train_everywhere(model, each.source(), {inputs(1)}, {{"bias", bias}}, inputs(2), 8);
    train_everywhere(model, each.source(), {inputs(1)}, {}, inputs(2), 8);
  }
}

// CustomSchedulesTest::test_non_symmetric_stage_ids
TEST(ScheduleRanksCatalogue, NonSymmetricStageIds) {
  const std::vector<std::pair<int32_t, std::string>> schedules = {
      {4, "0F0,,,3F0,3B0,,,0B0\n,1F0,2F0,,,2B0,1B0\n"},
      {5, "0F0,1F0,,,4F0,4B0,,,1B0,0B0\n,,2F0,3F0,,,3B0,2B0\n"}};
  for (const auto& [stages, csv] : schedules) {
    SCOPED_TRACE(csv);
    const models::WholeModel model = models::multi_mlp(kCatalogueRanksWidth, stages);
    const ScheduleSource source = ScheduleSource::fixed(parse_csv(csv));
    train_everywhere(model, source, {inputs(1)}, {}, inputs(2), 1);
  }
}

// CustomSchedulesTest::test_pipeline_schedule_runtime_custom_sched (ScheduleWithReorderedB):
// transfers written by hand, sends long after their values were computed, backwards in a different
// order than the forwards.
TEST(ScheduleRanksCatalogue, PipelineScheduleRuntimeCustomSched) {
  const std::string csv =
      "0F0,0F1,0SEND_F0,0SEND_F1,0RECV_B1,0RECV_B0,0B1,0B0\n"
      "1RECV_F0,1RECV_F1,1F0,1F1,1B0,1B1,1SEND_B0,1SEND_B1\n";
  models::WholeModel model = models::multi_mlp(kCatalogueRanksWidth, 2);
  const auto probe = std::make_shared<Probe>();
  add_probe(model.stages, probe);
  const ScheduleSource source = ScheduleSource::fixed(parse_csv(csv));
  train_everywhere(model, source, {inputs(1)}, {}, inputs(2), 2);
  EXPECT_EQ(probe->take_num_alive(), 0U) << "leaked";
}

// CustomSchedulesTest::test_schedule_with_native_zero_bubble (ScheduleWithW)
TEST(ScheduleRanksCatalogue, ScheduleWithNativeZeroBubble) {
  const std::string csv =
      "0F0,0F1,0F2,0F3,0I0,0W0,0I1,0W1,0I2,0W2,0I3,0W3\n"
      ",1F0,1I0,1F1,1I1,1W0,1F2,1I2,1W1,1F3,1I3,1W2,1W3\n";
  models::WholeModel model = models::multi_mlp(kCatalogueRanksWidth, 2);
  const auto probe = std::make_shared<Probe>();
  add_probe(model.stages, probe);
  const ScheduleSource source = ScheduleSource::fixed(parse_csv(csv));
  const WholeStep expected = train_whole(model, {inputs(1)}, {}, inputs(2));
  {
    Pipeline pipeline = make_pipeline(model.stages, {.source = source});
    for (int i = 0; i < 4; ++i) pipeline.step({inputs(1)}, {}, inputs(2), {.microbatches = 4});
  }
  const std::vector<at::Tensor> grads = take_grads(model.stages.bodies);
  for (std::size_t i = 0; i < grads.size(); ++i) {
    EXPECT_EQ(difference("gradient", grads[i], expected.grads[i].mul(4), 1e-6), "");
  }
  EXPECT_EQ(probe->take_num_alive(), 0U) << "leaked";
}

// Every schedule that PyTorch wrote into a file trains here: what is to be computed, and with
// PyTorch's own transfers.
TEST(ScheduleRanksCatalogue, PyTorchsFilesTrain) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(SC_GOLDEN)) {
    const std::string name = entry.path().filename();
    if (!name.ends_with("_comms.csv") && !name.ends_with("_compute.csv")) continue;
    SCOPED_TRACE(name);
    std::ifstream in(entry.path(), std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(in), {});
    const Schedule schedule = parse_csv(text);
    const TestModel model = chain_model(schedule.num_stages());
    Pipeline pipeline = make_pipeline(model, {.source = ScheduleSource::fixed(schedule)});
    const int32_t microbatches = schedule.num_microbatches();
    EXPECT_EQ(check_step(pipeline, model, random_batch(microbatches, 2 * microbatches, 5, 1)), "");
    ++files;
  }
  EXPECT_GE(files, 30);
}

}  // namespace
}  // namespace stagecraft
