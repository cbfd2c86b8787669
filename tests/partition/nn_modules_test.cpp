// Modules of torch::nn as they are.

#include <string>

#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/cos.h>
#include <torch/nn/modules/transformercoder.h>
#include <torch/utils.h>

#include "stagecraft/partition/pipe.h"
#include "stagecraft/stage/callable.h"
#include "tests/partition/pipe_check.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

constexpr int64_t kNnModulesWidth = 8;

at::Tensor sequence(int64_t length, int64_t rows) {
  return at::arange(length * rows * kNnModulesWidth, at::kFloat)
      .cos()
      .view({length, rows, kNnModulesWidth});
}

CaptureOptions batch_is_second() {
  return {.sizes = {{.name = "B", .places = {{"args[0]", 1}}}}};
}

TEST(NnModules, TransformerEncoder) {
  torch::manual_seed(3);
  torch::nn::TransformerEncoder model(torch::nn::TransformerEncoderOptions(
      torch::nn::TransformerEncoderLayerOptions(kNnModulesWidth, 2)
          .dim_feedforward(16)
          .dropout(0.0),
      4));
  const StageBody body = stage_body(model);
  auto inputs = [](int64_t rows) { return Arguments{{sequence(5, rows)}, {}}; };
  const Pipe pipe = pipeline(body, inputs(4),
                             {.points = {{"layers.1", SplitPoint::kBeginning},
                                         {"layers.2", SplitPoint::kBeginning},
                                         {"layers.3", SplitPoint::kBeginning}}},
                             {.capture = batch_is_second()});
  ASSERT_EQ(pipe.num_stages(), 4);
  for (int32_t i = 0; i < 4; ++i) {
    for (const GraphState& state : pipe.stage_graph(StageId(i)).parts().states) {
      if (state.kind != GraphState::Kind::kParameter) continue;
      EXPECT_TRUE(pipe.stage_graph(StageId(i))
                      .value(state.value)
                      .name.starts_with("layers." + std::to_string(i)));
    }
  }
  expect_same_run(pipe, body, inputs(6));
  EXPECT_EQ(train_everywhere(pipe, inputs), "");
}

TEST(NnModules, TransformerDecoder) {
  torch::manual_seed(4);
  torch::nn::TransformerDecoder model(torch::nn::TransformerDecoderOptions(
      torch::nn::TransformerDecoderLayerOptions(kNnModulesWidth, 2)
          .dim_feedforward(16)
          .dropout(0.0),
      3));
  const StageBody body = stage_body(model);
  auto inputs = [](int64_t rows) { return Arguments{{sequence(5, rows), sequence(7, rows)}, {}}; };
  CaptureOptions options = {.sizes = {{.name = "B", .places = {{"args[0]", 1}, {"args[1]", 1}}}}};
  // Its attention asks whether the keys are the queries.
  EXPECT_ERROR(pipeline(body, inputs(4), {}, {.capture = options}), CaptureError,
               "set CaptureOptions::equal_by_identity");
  options.equal_by_identity = true;
  const Pipe pipe = pipeline(body, inputs(4), {.policy = equal_cost(3)}, {.capture = options});
  expect_same_run(pipe, body, inputs(6));
  // Every layer reads the memory, which regroups its gradient alone; that is not a parameter's.
  EXPECT_EQ(train_everywhere(pipe, inputs, {.uncut_tolerance = 1e-6}), "");
}

}  // namespace
}  // namespace stagecraft
