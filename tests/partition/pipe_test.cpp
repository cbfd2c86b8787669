#include "stagecraft/partition/pipe.h"

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/generated/variable_factories.h>

#include "stagecraft/graph/capture/scope.h"
#include "stagecraft/graph/graph_text.h"
#include "stagecraft/runtime/pipeline.h"
#include "stagecraft/runtime/runner.h"
#include "stagecraft/stage/callable.h"
#include "stagecraft/stage/random_scope.h"
#include "stagecraft/transport/local/local_world.h"
#include "stagecraft/tree/tree.h"
#include "tests/partition/pipe_check.h"
#include "tests/partition/sample_tensors.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

using at::Tensor;
using testing::HasSubstr;

constexpr int64_t kPipeWidth = 6;

Tensor pipe_weight(double scale) {
  return sample_weight(kPipeWidth, scale);
}

Tensor pipe_rows(int64_t count) {
  return sample_rows(count, kPipeWidth);
}

Arguments pipe_batch(int64_t count) {
  return {{pipe_rows(count)}, {}};
}

StageBody pipe_body_of(const std::function<Tensor(const Tensor&)>& fn,
                       NamedTensors parameters = {}) {
  return stage_body([fn](const Tensor& x) { return fn(x); }, std::move(parameters));
}

TEST(Pipe, SendsWhatSkipsStages) {
  const Tensor w = pipe_weight(0.3);
  const StageBody model = pipe_body_of(
      [w](const Tensor& x) {
        const Tensor a = x.mm(w).tanh();
        pipe_split();
        const Tensor b = a.exp();
        pipe_split();
        const Tensor c = b.mm(b.t()).mm(x);
        pipe_split();
        return c + a;
      },
      {{"w", w}});
  const Pipe pipe = pipeline(model, pipe_batch(4));
  EXPECT_EQ(pipe.call_text(),
            "%submod_pp_0.0 = submod_pp_0(args[0])\n"
            "%submod_pp_1.0 = submod_pp_1(%submod_pp_0.0)\n"
            "%submod_pp_2.0 = submod_pp_2(args[0], %submod_pp_1.0)\n"
            "return submod_pp_3(%submod_pp_0.0, %submod_pp_2.0)\n");
  expect_same_run(pipe, model, pipe_batch(4));
  EXPECT_EQ(train_everywhere(pipe, pipe_batch), "");
  EXPECT_ERROR(pipe.stage_graph(StageId(4)), ArgumentError, "expected a stage from 0 to 3, got 4");
  EXPECT_ERROR(pipe.build_stage(StageId(-1)), ArgumentError,
               "expected a stage from 0 to 3, got -1");
  EXPECT_THAT(pipe.table(), HasSubstr("submod_pp_3"));
}

// The stages of a pipe have options like stages that a program builds, in threads and in a world.
TEST(Pipe, GivesItsStagesOptions) {
  const Tensor w = pipe_weight(0.5);
  const StageBody model = pipe_body_of(
      [w](const Tensor& x) {
        const Tensor y = x.mm(w).tanh();
        pipe_split();
        return y * 2;
      },
      {{"w", w}});
  const Pipe pipe = pipeline(model, pipe_batch(4));
  std::array<std::atomic<int>, 2> forwards = {0, 0};
  PipelineOptions options{.schedule = "1F1B", .ranks = 2};
  options.stage_options = [&](StageId stage) {
    StageOptions each;
    each.around_forward = [&, stage](const ForwardInfo& info,
                                     const std::function<void()>& forward) {
      EXPECT_EQ(info.stage, stage);
      forward();
      ++forwards[stage.position()];
    };
    return each;
  };
  const Tensor x = pipe_rows(6);
  const c10::IValue expected = model.forward({x}, {});
  {
    Pipeline run(pipe, options);
    const StepResult result = run.eval({x}, {}, {}, {.microbatches = 3});
    EXPECT_TRUE(at::allclose(result.output.toTensor(), expected.toTensor()));
    EXPECT_EQ(forwards[0].exchange(0), 3);
    EXPECT_EQ(forwards[1].exchange(0), 3);
  }
  LocalWorld world(2);
  world.run([&](Transport& transport) {
    Runner run(transport, pipe, options);
    const bool is_first = transport.rank() == Rank(0);
    run.eval(is_first ? Args{x} : Args{}, {}, {}, {.microbatches = 3});
  });
  EXPECT_EQ(forwards[0], 3);
  EXPECT_EQ(forwards[1], 3);
  Stage stage = pipe.build_stage(StageId(1), StageOptions{.recompute = true});
  EXPECT_TRUE(stage.options().recompute);
  EXPECT_ERROR(Pipeline(pipe.build_stages(), options), ArgumentError,
               "PipelineOptions::stage_options is for the stages of a Pipe");
}

TEST(Pipe, TellsSizesThatTensorsDoNotTell) {
  CaptureOptions options;
  options.sizes = {{.name = "B"}, {.name = "S", .places = {{"args[0]", 1}}}};
  const StageBody model = pipe_body_of([](const Tensor& x) {
    const Tensor flat = x.reshape({x.size(0) * x.size(1), kPipeWidth}).exp();
    pipe_split();
    return flat.view({x.size(0), x.size(1), kPipeWidth}).sum(1) * x.size(1);
  });
  auto make = [](int64_t count) {
    return Arguments{{pipe_rows(count * 5).view({count, 5, kPipeWidth})}, {}};
  };
  const Pipe pipe = pipeline(model, make(4), {}, {.capture = options});
  EXPECT_THAT(pipe.call_text(),
              HasSubstr("submod_pp_1(%submod_pp_0.0, %submod_pp_0.1, %submod_pp_0.2)"));
  expect_same_run(pipe, model, make(3));
  expect_same_run(pipe, model, {{pipe_rows(14).view({2, 7, kPipeWidth})}, {}});
  EXPECT_EQ(train_everywhere(pipe, make), "");
}

TEST(Pipe, ReturnsWhatEarlyStagesMake) {
  const StageBody model = stage_body([](const Args& args, const Kwargs& kwargs) -> c10::IValue {
    const Tensor a = args[0].toTensor() + 1;
    pipe_split();
    return tree::dict({{"early", a},
                       {"late", a * kwargs.get("scale").toTensor()},
                       {"input", args[0]},
                       {"rows", a.size(0)}});
  });
  const Arguments example{{pipe_rows(4)}, {{"scale", pipe_rows(4)}}};
  const Pipe pipe = pipeline(model, example);
  const Arguments other{{pipe_rows(7)}, {{"scale", pipe_rows(7)}}};
  EXPECT_TRUE(
      tree::equal(pipe.run(other.args, other.kwargs), model.forward(other.args, other.kwargs)));
  EXPECT_ERROR(pipe.run(other.args, {}), MetadataError, "an argument by name 'scale'");
  Pipeline run(pipe.build_stages(), {.ports = pipe.ports()});
  const StepResult result =
      run.eval(other.args, other.kwargs, {}, {.microbatches = 2, .outputs = OutputMode::kEach});
  EXPECT_EQ(result.outputs.size(), 2U);
}

TEST(Pipe, ForwardsWhatAMiddleStageChanges) {
  const StageBody model = pipe_body_of([](const Tensor& x) {
    const Tensor a = x * 2;
    pipe_split();
    const Tensor view = a.view({-1});
    view.add_(3);
    pipe_split();
    return a.exp();
  });
  const Pipe pipe = pipeline(model, pipe_batch(4));
  EXPECT_EQ(pipe.call_text(),
            "%submod_pp_0.0 = submod_pp_0(args[0])\n"
            "%submod_pp_1.0 = submod_pp_1(%submod_pp_0.0)\n"
            "return submod_pp_2(%submod_pp_1.0)\n");
  expect_same_run(pipe, model, pipe_batch(4));
  EXPECT_EQ(train_everywhere(pipe, pipe_batch), "");
}

struct Tied {
  Tensor embed = pipe_weight(0.2);
  Tensor middle = pipe_weight(0.4);
  StageBody body() const {
    return pipe_body_of(
        [embed = embed, middle = middle](const Tensor& x) {
          const Tensor a = x.mm(embed).tanh();
          pipe_split();
          const Tensor b = a.mm(middle).tanh();
          pipe_split();
          return b.mm(embed.t());
        },
        {{"embed.weight", embed}, {"middle.weight", middle}, {"head.weight", embed}});
  }
};

std::map<std::string, int> names_of(const Pipe& pipe) {
  std::map<std::string, int> names;
  for (int32_t i = 0; i < pipe.num_stages(); ++i) {
    const Graph& graph = pipe.stage_graph(StageId(i));
    for (const GraphState& state : graph.parts().states) {
      ++names[graph.value(state.value).name];
      for (const std::string& name : state.other_names) ++names[name];
    }
  }
  return names;
}

TEST(Pipe, ReplicatesSharedParameters) {
  const Tied tied;
  const Pipe pipe = pipeline(tied.body(), pipe_batch(4));
  EXPECT_EQ(names_of(pipe), (std::map<std::string, int>{
                                {"embed.weight", 1}, {"middle.weight", 1}, {"head.weight", 1}}));
  ASSERT_EQ(pipe.ties().size(), 1U);
  EXPECT_EQ(pipe.ties()[0][1].name, "head.weight");
  expect_same_run(pipe, tied.body(), pipe_batch(5));
  EXPECT_EQ(train_everywhere(pipe, pipe_batch, {.uncut_tolerance = 1e-6}), "");

  // A step of descent leaves the copies equal.
  Pipeline run(pipe.build_stages(), {.loss = [](const Tensor& y) { return y.pow(2).mean(); },
                                     .ports = pipe.ports(),
                                     .ties = pipe.ties()});
  run.step({pipe_rows(8)}, {}, {}, {.microbatches = 4});
  const c10::NoGradGuard no_grad;
  for (const Tensor& parameter : pipe.parameters()) parameter.sub_(parameter.grad() * 0.1);
  const Tensor& copy = pipe.stage_graph(StageId(2)).find_state("head.weight")->tensor;
  EXPECT_FALSE(copy.is_same(tied.embed));
  EXPECT_TRUE(copy.equal(tied.embed));
}

TEST(Pipe, HoldsFrozenParametersOnce) {
  const Tensor w = torch::ones({kPipeWidth, kPipeWidth});
  const Pipe pipe = pipeline(stage_body(
                                 [w](const Tensor& x) {
                                   const Tensor a = x.mm(w).tanh();
                                   pipe_split();
                                   return a.mm(w);
                                 },
                                 {{"w", w}}),
                             pipe_batch(4));
  EXPECT_TRUE(pipe.ties().empty());
  w.mul_(2);  // as loading a checkpoint does
  EXPECT_TRUE(pipe.run({pipe_rows(4)}).toTensor().equal(pipe_rows(4).mm(w).tanh().mm(w)));
}

TEST(Pipe, TransmitsSharedParameters) {
  const Tied tied;
  const Pipe pipe =
      pipeline(tied.body(), pipe_batch(4), {},
               {.sharing = {.by_name = {{"head.weight", SharedParameter::kTransmit}}}});
  EXPECT_TRUE(pipe.ties().empty());
  EXPECT_EQ(names_of(pipe), (std::map<std::string, int>{
                                {"embed.weight", 1}, {"middle.weight", 1}, {"head.weight", 1}}));
  EXPECT_EQ(pipe.stage_graph(StageId(2)).parts().states.size(), 0U);
  expect_same_run(pipe, tied.body(), pipe_batch(5));
  EXPECT_EQ(train_everywhere(pipe, pipe_batch, {.uncut_tolerance = 1e-6}), "");
  EXPECT_ERROR(pipeline(tied.body(), pipe_batch(4), {},
                        {.sharing = {.by_name = {{"tail.weight", SharedParameter::kTransmit}}}}),
               ArgumentError, "sharing: there is no parameter 'tail.weight'");
}

TEST(Pipe, KeepsUnusedParametersAndBuffers) {
  const Tensor w = pipe_weight(0.1);
  const Tensor unused = pipe_weight(0.2);
  StageBody body = pipe_body_of(
      [w](const Tensor& x) {
        const Tensor y = x.exp();
        pipe_split();
        return y.mm(w);
      },
      {{"head.unused", unused}, {"head.weight", w}});
  body.buffers = {{"table", torch::ones({3})}};
  const Pipe pipe = pipeline(body, pipe_batch(4));
  EXPECT_EQ(names_of(pipe),
            (std::map<std::string, int>{{"head.unused", 1}, {"head.weight", 1}, {"table", 1}}));
  EXPECT_NE(pipe.stage_graph(StageId(1)).find_state("head.unused"), nullptr);
}

TEST(Pipe, KeepsUpdatedBuffersInOneStage) {
  const Tensor count = torch::zeros({});
  StageBody body = pipe_body_of([count](const Tensor& x) {
    const Tensor y = x * 2;
    count.add_(1);
    const Tensor z = y + 1;
    return z * count;
  });
  body.buffers = {{"count", count}};
  const Graph graph = capture({body.forward, {}, body.buffers}, pipe_batch(4));
  EXPECT_ERROR(Pipe(graph, {.policy = [](const Graph&) { return SplitPositions{2}; }}),
               ArgumentError, "add_ changes %count in place, which is used on both sides");
  EXPECT_EQ(Pipe(graph, {.policy = equal_operators(2)}).num_stages(), 2);
}

TEST(Pipe, DrawsTheSameNumbersHoweverItIsCut) {
  const StageBody model = pipe_body_of([](const Tensor& x) {
    const Tensor a = at::dropout(x, 0.5, true).tanh();
    const Tensor b = at::dropout(a + 1, 0.5, true).tanh();
    return at::dropout(b + 2, 0.5, true) * 3;
  });
  const Graph graph = capture({model.forward}, pipe_batch(4));
  std::vector<Tensor> outputs;
  for (const int32_t stages : {1, 2, 3, 4}) {
    const Pipe pipe(graph, {.policy = equal_operators(stages)});
    Pipeline run(pipe.build_stages(), {.ports = pipe.ports(), .seed = 3});
    outputs.push_back(run.eval({pipe_rows(8)}, {}, {}, {.microbatches = 4}).output.toTensor());
    EXPECT_TRUE(outputs.back().equal(outputs.front())) << stages;
  }
}

TEST(Pipe, IsCapturedInsideARandomScope) {
  const RandomScope random(5);
  const Pipe pipe = pipeline(
      pipe_body_of([](const Tensor& x) { return at::dropout(x, 0.5, true) + 1; }), pipe_batch(4));
  EXPECT_EQ(pipe.num_stages(), 1);
}

TEST(Pipe, ChecksWhatItWasCapturedWith) {
  const StageBody model = stage_body(
      [](const Tensor& x, bool is_twice) {
        const Tensor y = is_twice ? x * 2 : x;
        pipe_split();
        return y + 1;
      },
      {}, {"x", "is_twice"});
  const Pipe pipe = pipeline(model, {{pipe_rows(4)}, {{"is_twice", true}}});
  EXPECT_TRUE(
      pipe.run({pipe_rows(4)}, {{"is_twice", true}}).toTensor().equal(pipe_rows(4) * 2 + 1));
  EXPECT_ERROR(pipe.run({pipe_rows(4)}, {{"is_twice", false}}), MetadataError,
               "kwargs[\"is_twice\"]: expected True");
  EXPECT_ERROR(pipe.run({pipe_rows(4), pipe_rows(4)}, {{"is_twice", true}}), MetadataError,
               "expected 1 positional");
  Pipeline run(pipe.build_stages(), {.ports = pipe.ports()});
  EXPECT_ERROR(run.eval({pipe_rows(4)}, {{"is_twice", false}}, {}, {.microbatches = 2}), StageError,
               "expected True");
}

TEST(Pipe, CopiesWhatOneStageChangesAndAnotherReads) {
  const Tensor w0 = pipe_weight(0.3);
  const Tensor w1 = pipe_weight(0.5);
  const StageBody model = pipe_body_of(
      [w0, w1](const Tensor& x) {
        Tensor a = x.mm(w0);
        pipe_split();
        const Tensor h = a.relu();
        pipe_split();
        a.add_(h.mm(w1));
        return a;
      },
      {{"w0", w0}, {"w1", w1}});
  const Pipe pipe = pipeline(model, pipe_batch(4));
  expect_same_run(pipe, model, pipe_batch(4));
  EXPECT_EQ(train_everywhere(pipe, pipe_batch), "");

  // An input of the model that a late stage changes.
  const StageBody late = pipe_body_of([](const Tensor& x) {
    const Tensor y = x * 2;
    pipe_split();
    x.add_(1);
    const Tensor z = x.exp();
    pipe_split();
    return y + z;
  });
  const Pipe changed = pipeline(late, pipe_batch(4));
  EXPECT_TRUE(
      changed.run({pipe_rows(4)}).toTensor().equal(late.forward({pipe_rows(4)}, {}).toTensor()));
  EXPECT_THAT(to_text(changed.stage_graph(StageId(1))), HasSubstr("aten::clone"));
}

TEST(Pipe, TakesTreesOfWhichAStageChangedALeaf) {
  const StageBody model = stage_body([](const Args& args, const Kwargs&) -> c10::IValue {
    const auto& pair = args[0].toTupleRef().elements();
    const Tensor x = pair[0].toTensor();
    x.view({-1}).add_(1);
    pipe_split();
    return x * pair[1].toTensor();
  });
  auto make = [] { return Args{tree::tuple({pipe_rows(4), pipe_rows(4) + 2})}; };
  const Pipe pipe = pipeline(model, {make(), {}});
  EXPECT_TRUE(pipe.run(make()).toTensor().equal(model.forward(make(), {}).toTensor()));
}

TEST(Pipe, MovesToADevice) {
  const Tied tied;
  const Pipe pipe = pipeline(tied.body(), pipe_batch(4));
  EXPECT_TRUE(pipe.to(c10::kCPU).parameters()[0].is_same(tied.embed));
  const Pipe moved = pipe.to(c10::kMeta);
  for (const Tensor& parameter : moved.parameters())
    EXPECT_TRUE(parameter.is_meta() && parameter.requires_grad());
  // The whole and the stage still hold one tensor.
  EXPECT_TRUE(
      moved.graph()
          .find_state("middle.weight")
          ->tensor.is_same(moved.stage_graph(StageId(1)).find_state("middle.weight")->tensor));
  const StageBody factory =
      pipe_body_of([](const Tensor& x) { return x + torch::arange(kPipeWidth, at::kFloat); });
  const Pipe elsewhere = pipeline(factory, pipe_batch(4)).to(c10::kMeta);
  EXPECT_TRUE(elsewhere.run({pipe_rows(4).to(c10::kMeta)}).toTensor().is_meta());
}

}  // namespace
}  // namespace stagecraft
