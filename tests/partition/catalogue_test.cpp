// PyTorch's own tests of traced pipelines, as far as they have a meaning here: test_pipe,
// test_transformer, test_unflatten, the tracer's cases of test_stage and the traced one of
// test_chunk_spec.

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/nn/module.h>

#include "stagecraft/graph/capture/scope.h"
#include "stagecraft/partition/pipe.h"
#include "stagecraft/runtime/pipeline.h"
#include "stagecraft/stage/callable.h"
#include "tests/partition/pipe_check.h"
#include "tests/partition/sample_tensors.h"
#include "tests/support/models.h"
#include "tests/support/reference.h"

namespace stagecraft {
namespace {

using at::Tensor;

constexpr int64_t kCatalogueWidth = 8;

Tensor catalogue_rows(int64_t count) {
  return sample_rows(count, kCatalogueWidth);
}
Arguments catalogue_batch(int64_t count) {
  return {{catalogue_rows(count)}, {}};
}

StageBody case_body(const models::WholeModel& model) {
  StageBody body;
  body.forward = model.forward;
  for (const auto& item : model.module->named_parameters())
    body.parameters.emplace_back(item.key(), item.value());
  for (const auto& item : model.module->named_buffers())
    body.buffers.emplace_back(item.key(), item.value());
  return body;
}

std::multiset<std::string> names_in(const Pipe& pipe) {
  std::multiset<std::string> names;
  for (int32_t i = 0; i < pipe.num_stages(); ++i) {
    const Graph& graph = pipe.stage_graph(StageId(i));
    for (const GraphState& state : graph.parts().states)
      names.insert(graph.value(state.value).name);
  }
  return names;
}

/// Every original name is there, and nothing else.
void expect_names(const Pipe& pipe, const StageBody& body) {
  const std::multiset<std::string> found = names_in(pipe);
  const std::set<std::string> distinct(found.begin(), found.end());
  std::set<std::string> expected;
  for (const auto& [name, tensor] : body.parameters) expected.insert(name);
  for (const auto& [name, tensor] : body.buffers) expected.insert(name);
  EXPECT_EQ(distinct, expected);
}

TEST(TestPipe, ModelSplit) {
  struct Case {
    models::WholeModel model;
    int32_t stages;
  };
  const std::vector<Case> cases = {{models::example_code(kCatalogueWidth, 4), 4},
                                   {models::multi_mlp(kCatalogueWidth, 4), 4},
                                   {models::model_with_param_alias(kCatalogueWidth), 2}};
  for (const Case& each : cases) {
    const StageBody body = case_body(each.model);
    const Pipe pipe = pipeline(body, catalogue_batch(4), {.policy = equal_cost(each.stages)});
    EXPECT_EQ(pipe.num_stages(), each.stages);
    expect_names(pipe, body);
    expect_same_run(pipe, body, catalogue_batch(4));
    EXPECT_EQ(train_everywhere(pipe, catalogue_batch, {.uncut_tolerance = 1e-6}), "");
  }
}

TEST(TestPipe, TensorsThatAreNoFloatsCrossStages) {
  const StageBody body = stage_body([](const Tensor& x) {
    const Tensor order = at::argsort(x, 1, false);
    const Tensor is_large = x > 0;
    pipe_split();
    return at::where(is_large, x.gather(1, order), x * 2);
  });
  const Pipe pipe = pipeline(body, catalogue_batch(4));
  EXPECT_EQ(pipe.num_stages(), 2);
  expect_same_run(pipe, body, catalogue_batch(5));
  EXPECT_EQ(train_everywhere(pipe, catalogue_batch), "");
}

TEST(TestTransformer, SplitBeforeLayerFour) {
  const models::WholeModel model = models::multi_mlp(kCatalogueWidth, 8);
  const StageBody body = case_body(model);
  const Pipe pipe =
      pipeline(body, catalogue_batch(4), {.points = {{"layers.4", SplitPoint::kBeginning}}});
  ASSERT_EQ(pipe.num_stages(), 2);
  expect_names(pipe, body);
  EXPECT_EQ(names_in(pipe).size(), body.parameters.size());  // none twice
  EXPECT_NE(pipe.stage_graph(StageId(0)).find_state("layers.3.linear1.bias"), nullptr);
  EXPECT_NE(pipe.stage_graph(StageId(1)).find_state("layers.4.linear0.weight"), nullptr);
  expect_same_run(pipe, body, catalogue_batch(6));
}

TEST(TestUnflatten, NestedModulesAndAKwargThatSeveralStagesUse) {
  NamedTensors parameters;
  for (const char* name :
       {"block0.conv.weight", "block0.lin0.weight", "block1.conv.weight", "block1.lin0.weight"}) {
    parameters.emplace_back(name, (catalogue_rows(kCatalogueWidth) * 0.3).requires_grad_());
  }
  StageBody body = stage_body(
      [parameters](const Tensor& x, const Tensor& constant) {
        Tensor y = x;
        for (std::size_t i = 0; i < parameters.size(); ++i) {
          if (i > 0) pipe_split();
          y = (y + constant).mm(parameters[i].second).relu();
        }
        return y;
      },
      parameters, {"x", "constant"});
  auto make = [](int64_t count) {
    return Arguments{{catalogue_rows(count)}, {{"constant", torch::ones({1})}}};
  };
  const Pipe pipe = pipeline(body, make(4));
  ASSERT_EQ(pipe.num_stages(), 4);
  expect_names(pipe, body);
  expect_same_run(pipe, body, make(6));
  EXPECT_EQ(pipe.call_text(),
            "%submod_pp_0.0 = submod_pp_0(args[0], constant=kwargs[\"constant\"])\n"
            "%submod_pp_1.0 = submod_pp_1(%submod_pp_0.0, constant=kwargs[\"constant\"])\n"
            "%submod_pp_2.0 = submod_pp_2(%submod_pp_1.0, constant=kwargs[\"constant\"])\n"
            "return submod_pp_3(%submod_pp_2.0, constant=kwargs[\"constant\"])\n");
}

TEST(TestStage, TracedStagesInGPipe) {
  for (const models::WholeModel& model :
       {models::example_code(kCatalogueWidth, 4), models::multi_mlp(kCatalogueWidth, 4)}) {
    const StageBody body = case_body(model);
    const Pipe pipe = pipeline(body, catalogue_batch(2), {.policy = equal_operators(4)});
    Pipeline run(
        pipe.build_stages(),
        {.schedule = "GPipe", .ports = pipe.ports(), .ties = pipe.ties(), .threads_per_rank = 1});
    const Tensor x = catalogue_rows(16);
    const Tensor output = run.eval({x}, {}, {}, {.microbatches = 8}).output.toTensor();
    EXPECT_EQ(difference("output", output, model.forward({x}, {}).toTensor().detach(), 1e-6), "");
  }
}

TEST(TestStage, KwargsOfTheFirstTracedStage) {
  const models::WholeModel model = models::model_with_kwargs(kCatalogueWidth);
  const StageBody body = case_body(model);
  auto make = [](int64_t count) {
    return Arguments{{catalogue_rows(count)}, {{"y", catalogue_rows(count) * 2}}};
  };
  const Pipe pipe = pipeline(body, make(4), {.policy = equal_cost(2)});
  expect_same_run(pipe, body, make(5));
  EXPECT_EQ(train_everywhere(pipe, make), "");
}

TEST(TestChunkSpec, TheTracedPipeOnTheWholeBatch) {
  const models::WholeModel model = models::model_with_kwargs(kCatalogueWidth);
  const StageBody body = case_body(model);
  const Arguments example{{catalogue_rows(4)}, {{"y", catalogue_rows(4)}}};
  const Pipe pipe = pipeline(body, example, {.policy = equal_cost(2)});
  expect_same_run(pipe, body, {{catalogue_rows(16)}, {{"y", catalogue_rows(16)}}});
}

}  // namespace
}  // namespace stagecraft
