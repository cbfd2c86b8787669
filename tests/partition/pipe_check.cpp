#include "tests/partition/pipe_check.h"

#include <algorithm>
#include <utility>

#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/pow.h>
#include <torch/csrc/autograd/autograd.h>

#include "stagecraft/runtime/schedule_source.h"
#include "tests/support/pipeline_check.h"
#include "tests/support/reference.h"

namespace stagecraft {

namespace {

/// Bodies in which copies of a shared parameter are one tensor.
std::vector<StageBody> plain_bodies(const Pipe& pipe) {
  std::vector<GraphParts> parts;
  for (int32_t i = 0; i < pipe.num_stages(); ++i)
    parts.push_back(pipe.stage_graph(StageId(i)).parts());
  auto find = [&](const ParameterRef& ref) -> at::Tensor& {
    GraphParts& own = parts[static_cast<std::size_t>(ref.stage.value())];
    for (GraphState& state : own.states) {
      if (own.values[state.value].name == ref.name) return state.tensor;
    }
    throw ArgumentError("no parameter " + ref.name);
  };
  for (const TiedWeight& tie : pipe.ties()) {
    for (const ParameterRef& ref : tie) find(ref) = find(tie.front());
  }
  std::vector<StageBody> bodies;
  for (GraphParts& own : parts) bodies.push_back(stage_body(Graph(std::move(own))));
  return bodies;
}

}  // namespace

TestModel test_model(const Pipe& pipe) {
  TestModel model;
  for (int32_t i = 0; i < pipe.num_stages(); ++i) {
    const Graph& graph = pipe.stage_graph(StageId(i));
    model.bodies.push_back(stage_body(graph));
    model.options.push_back({.device = graph.parts().values[ValueId(0)].device});
  }
  model.ports = pipe.ports();
  model.ties = pipe.ties();
  model.loss = [](const at::Tensor& output) { return output.pow(2).mean(); };
  if (!pipe.ties().empty()) model.plain_bodies = plain_bodies(pipe);
  return model;
}

std::string train_everywhere(const Pipe& pipe, const std::function<Arguments(int64_t)>& inputs,
                             const PipeCheckOptions& options) {
  const TestModel model = test_model(pipe);
  const int32_t stages = pipe.num_stages();
  struct Entry {
    std::string name;
    int32_t stages_per_rank;
  };
  std::vector<Entry> schedules = {{"1F1B", 1}, {"GPipe", 1}};
  if (stages % 2 == 0) {
    schedules.push_back({"Interleaved1F1B", 2});
    schedules.push_back({"ZBVZeroBubble", 2});
  } else if (stages > 1) {
    schedules.push_back({"Interleaved1F1B", stages});
    schedules.push_back({"InterleavedZeroBubble", stages});
  }
  for (const auto& [name, stages_per_rank] : schedules) {
    const auto source = ScheduleSource::named(name, stages / stages_per_rank, stages_per_rank);
    PipelineCheck check(
        model, source,
        {.uncut_tolerance = options.uncut_tolerance, .cut_tolerance = options.cut_tolerance});
    for (const std::vector<int64_t>& rows :
         std::vector<std::vector<int64_t>>{{3, 3, 2, 4}, {2, 5, 3, 3}}) {
      const std::string found = check.step([&] {
        Microbatches batch;
        for (const int64_t n : rows) batch.inputs.push_back(inputs(n));
        return batch;
      });
      if (!found.empty()) return name + ": " + found;
    }
  }
  return {};
}

namespace {

/// The copies of shared parameters after the first, which is the model's own.
std::vector<std::pair<at::Tensor, std::vector<at::Tensor>>> copies_of(const Pipe& pipe) {
  std::vector<std::pair<at::Tensor, std::vector<at::Tensor>>> result;
  for (const TiedWeight& tie : pipe.ties()) {
    std::vector<at::Tensor> tensors;
    for (const ParameterRef& ref : tie) {
      tensors.push_back(pipe.stage_graph(ref.stage).find_state(ref.name)->tensor);
    }
    const at::Tensor own = tensors.front();
    tensors.erase(tensors.begin());
    result.emplace_back(own, std::move(tensors));
  }
  return result;
}

}  // namespace

void expect_same_run(const Pipe& pipe, const StageBody& model, const Arguments& arguments) {
  auto run = [&](const auto& forward) {
    for (const at::Tensor& parameter : pipe.parameters()) parameter.mutable_grad().reset();
    const at::Tensor output = forward().toTensor();
    if (output.requires_grad()) torch::autograd::backward({output.pow(2).mean()});
    return output.detach();
  };
  auto take_grads = [&] {
    std::vector<at::Tensor> grads;
    for (const auto& [name, tensor] : model.parameters) {
      grads.push_back(tensor.grad());
      tensor.mutable_grad().reset();
    }
    return grads;
  };
  const at::Tensor expected = run([&] { return model.forward(arguments.args, arguments.kwargs); });
  const std::vector<at::Tensor> expected_grads = take_grads();
  const at::Tensor got = run([&] { return pipe.run(arguments.args, arguments.kwargs); });
  const auto copies = copies_of(pipe);
  for (const auto& [own, others] : copies) {
    for (const at::Tensor& other : others) own.mutable_grad() = own.grad() + other.grad();
  }
  const std::vector<at::Tensor> grads = take_grads();
  EXPECT_EQ(difference("output", got, expected), "");
  for (std::size_t i = 0; i < grads.size(); ++i) {
    const std::string& name = model.parameters[i].first;
    const at::Tensor& tensor = model.parameters[i].second;
    const bool is_shared = std::ranges::any_of(
        copies, [&](const auto& shared) { return shared.first.is_same(tensor); });
    EXPECT_EQ(difference(name, grads[i], expected_grads[i], is_shared ? 1e-6 : 0), "");
  }
  for (const at::Tensor& parameter : pipe.parameters()) parameter.mutable_grad().reset();
}

}  // namespace stagecraft
