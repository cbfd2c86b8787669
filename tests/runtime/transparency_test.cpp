#include <cstdint>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>

#include "stagecraft/base/error.h"
#include "stagecraft/runtime/schedule_source.h"
#include "stagecraft/stage/random_scope.h"
#include "tests/runtime/transparency_cases.h"
#include "tests/support/models.h"
#include "tests/support/pipeline_check.h"

// Every schedule trains as the same stages do one after another in one thread, and as the uncut
// model: outputs, losses and all gradients have the same bits.

namespace stagecraft {
namespace {

constexpr int32_t kMaxRanks = 4;

struct Tally {
  int ran = 0;
  int refused_shapes = 0;
  int refused_microbatches = 0;
  int too_few_stages = 0;
};

std::string step(PipelineCheck& check, const ModelShape& shape, int32_t microbatches) {
  if (!shape.is_uneven) return check.step([&] { return matrix_batch(microbatches); });
  return check.step(input_of(0, kUnevenRows), target_of(0, kUnevenRows), microbatches);
}

void run_all_microbatches(const MatrixSchedule& c, int32_t ranks, const ScheduleSource& source,
                          const ModelShape& shape, Tally& tally) {
  const TestModel model = shape.make(source.placement().num_stages());
  PipelineCheck check(model, source, {.uncut_tolerance = shape.uncut_tolerance});
  // One pipeline for all: the number of microbatches belongs to the step, and a refused one leaves
  // nothing behind.
  for (const int32_t m : matrix_microbatches()) {
    if (!c.kind->takes({ranks, model.num_stages() / ranks, m})) {
      EXPECT_THROW(step(check, shape, m), ArgumentError);
      ++tally.refused_microbatches;
      continue;
    }
    EXPECT_EQ(step(check, shape, m), "")
        << c.title() << ", " << ranks << " ranks, " << model.num_stages() << " stages, " << m
        << " microbatches, " << shape.name;
    ++tally.ran;
  }
}

TEST(Transparency, AllSchedulesAndShapes) {
  Tally tally;
  for (const MatrixSchedule& c : matrix_schedules()) {
    for (int32_t ranks = 1; ranks <= kMaxRanks; ++ranks) {
      for (int32_t per_rank = 1; per_rank <= c.max_stages_per_rank(); ++per_rank) {
        if (!c.kind->stages_per_rank.contains(per_rank)) {
          EXPECT_THROW(c.source(ranks, per_rank), ArgumentError) << c.title();
          ++tally.refused_shapes;
          continue;
        }
        // One for all shapes: it lowers its schedules anew for each way of connecting stages.
        const ScheduleSource source = c.source(ranks, per_rank);
        for (const ModelShape& shape : model_shapes()) {
          if (ranks * per_rank < shape.min_stages) {
            ++tally.too_few_stages;
            continue;
          }
          run_all_microbatches(c, ranks, source, shape, tally);
        }
      }
    }
  }
  std::cout << tally.ran << " combinations ran; refused: " << tally.refused_shapes
            << " numbers of stages a rank, " << tally.refused_microbatches
            << " numbers of microbatches; " << tally.too_few_stages
            << " pairs of a schedule and a shape of model that needs more stages\n";
  // As many as the seven schedules of PyTorch's gave.
  EXPECT_GE(tally.ran, 2622);
  EXPECT_GE(tally.refused_shapes, 48);
  EXPECT_GE(tally.refused_microbatches, 128);
  EXPECT_GE(tally.too_few_stages, 110);
}

TEST(Transparency, UnevenBatchHasTheMeanOfTheWhole) {
  const at::Tensor x = input_of(0, 8);
  const at::Tensor y = target_of(0, 8);
  const TestModel model = model_shapes().front().make(2);
  auto train = [&](int32_t microbatches) {
    Pipeline pipeline(model.make_stages(), {.loss = model.loss});
    const StepResult result = pipeline.step({x}, {}, y, {.microbatches = microbatches});
    std::vector<at::Tensor> grads = take_grads(model.bodies);
    grads.push_back(result.loss());
    grads.push_back(result.output.toTensor());
    return grads;
  };
  const std::vector<at::Tensor> whole = train(1);
  const std::vector<at::Tensor> parts = train(3);  // 3 3 2
  for (std::size_t i = 0; i < whole.size(); ++i) {
    EXPECT_LE((whole[i] - parts[i]).abs().max().item<double>(), 1e-6) << i;
  }
}

TEST(Transparency, GradientsOfSeveralStepsAddUp) {
  const TestModel model = model_shapes().front().make(4);
  for (const char* name : {"1F1B", "GPipe"}) {
    PipelineCheck check(model, ScheduleSource::named(name, 4), {});
    for (const int32_t m : {3, 1, 5}) {
      EXPECT_EQ(check.step([&] { return matrix_batch(m); }, true), "") << name << " " << m;
    }
  }
}

// PyTorch's test models
// ----------------------------------------------------------------------------

constexpr int64_t kTestWidth = 7;

at::Tensor random_rows(uint64_t number) {
  const RandomScope random(number);
  return at::randn({3, kTestWidth});
}

PipelineCheck::MakeBatch batch_for(std::optional<std::string> kwarg = std::nullopt) {
  return [=] {
    Microbatches batch;
    for (uint64_t m = 0; m < 4; ++m) {
      Kwargs kwargs;
      if (kwarg) kwargs.set(*kwarg, random_rows(100 + m));
      batch.inputs.push_back({{random_rows(m)}, kwargs});
      batch.targets.emplace_back(random_rows(200 + m));
    }
    return batch;
  };
}

struct ModelCase {
  std::string name;
  models::WholeModel model;
  std::optional<std::string> kwarg = std::nullopt;
  double cut_tolerance = 0;
  double uncut_tolerance = 0;
};

std::vector<ModelCase> model_cases() {
  std::vector<ModelCase> cases;
  for (int32_t stages = 1; stages <= 8; ++stages) {
    cases.push_back(
        {"ExampleCode " + std::to_string(stages), models::example_code(kTestWidth, stages)});
  }
  cases.push_back({"ModelWithKwargs", models::model_with_kwargs(kTestWidth), "y"});
  cases.push_back({"ModelWithKwargs, left out", models::model_with_kwargs(kTestWidth)});
  // One tensor in two stages: its gradients come as the ranks do.
  cases.push_back(
      {"ModelWithParamAlias", models::model_with_param_alias(kTestWidth), {}, 1e-6, 1e-6});
  cases.push_back({"MLP", models::mlp(kTestWidth)});
  cases.push_back({"MultiMLP", models::multi_mlp(kTestWidth, 4)});
  cases.push_back({"MultiMLPKwargs", models::multi_mlp_kwargs(kTestWidth, 4), "bias"});
  cases.push_back({"MultiMLPKwargs, left out", models::multi_mlp_kwargs(kTestWidth, 4)});
  cases.push_back({"MultiMLPWithDw", models::multi_mlp_with_dw(kTestWidth, 4), {}, 0, 1e-6});
  return cases;
}

// A rank for each stage, all on one, and two for each where there are as many.
std::vector<ScheduleSource> sources_for(int32_t stages) {
  std::vector<ScheduleSource> sources;
  for (const MatrixSchedule& c : matrix_schedules()) {
    for (int32_t ranks = 1; ranks <= kMaxRanks; ++ranks) {
      if (stages % ranks != 0 || !c.kind->takes({ranks, stages / ranks, 4})) continue;
      sources.push_back(c.source(ranks, stages / ranks));
    }
  }
  return sources;
}

TEST(Transparency, ModelsOfPyTorchsTests) {
  int ran = 0;
  for (const ModelCase& c : model_cases()) {
    const PipelineCheck::MakeBatch make = batch_for(c.kwarg);
    for (const ScheduleSource& source : sources_for(c.model.stages.num_stages())) {
      PipelineCheck check(c.model.stages, source,
                          {.uncut_tolerance = c.uncut_tolerance, .cut_tolerance = c.cut_tolerance});
      const Microbatches batch = make();
      const StepResult result = check.pipeline().eval(batch, {.outputs = OutputMode::kEach});
      for (std::size_t m = 0; m < batch.inputs.size(); ++m) {
        const Arguments& inputs = batch.inputs[m];
        const at::Tensor whole = c.model.forward(inputs.args, inputs.kwargs).toTensor();
        EXPECT_TRUE(at::equal(result.outputs.at(m).toTensor(), whole))
            << c.name << ", " << source.name() << ", microbatch " << m;
      }
      EXPECT_EQ(check.step(make), "") << c.name << ", " << source.name();
      ++ran;
    }
  }
  EXPECT_GE(ran, 173);
}

}  // namespace
}  // namespace stagecraft
