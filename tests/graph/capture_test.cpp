#include "stagecraft/graph/capture/capture.h"

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/generated/variable_factories.h>

#include "stagecraft/graph/capture/scope.h"
#include "stagecraft/graph/graph_text.h"
#include "stagecraft/graph/run/program.h"
#include "stagecraft/tree/tree.h"
#include "tests/graph/graph_check.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

using at::Tensor;
using testing::HasSubstr;
using testing::Not;

at::Tensor parameter(std::vector<int64_t> shape, int64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(c10::kCPU).clone();
  generator.set_current_seed(static_cast<uint64_t>(seed));
  return at::randn(shape, generator).mul_(0.3).requires_grad_();
}

Tensor batch(int64_t rows, int64_t width) {
  return at::arange(rows * width, at::kFloat).sin().view({rows, width});
}

MakeArguments rows_of(int64_t width) {
  return [width](int64_t rows) { return Arguments{{batch(rows, width)}, {}}; };
}

/// A model of one tensor.
StageBody model_of(const std::function<c10::IValue(const Tensor&)>& fn,
                   std::vector<std::pair<std::string, Tensor>> parameters = {},
                   std::vector<std::pair<std::string, Tensor>> buffers = {}) {
  return {[fn](const Args& args, const Kwargs&) { return fn(args[0].toTensor()); },
          std::move(parameters), std::move(buffers)};
}

std::vector<std::string> ops_of(const Graph& graph) {
  std::vector<std::string> ops;
  for (const GraphNode& node : graph.parts().nodes) ops.push_back(toString(node.op));
  return ops;
}

TEST(Capture, WritesDownOperatorsAndNames) {
  const Tensor w = parameter({8, 16}, 1);
  const Tensor b = parameter({8}, 2);
  const Graph graph =
      expect_same(model_of([&](const Tensor& x) { return at::addmm(b, x, w.t()).relu(); },
                           {{"fc.weight", w}, {"fc.bias", b}}),
                  rows_of(16));
  EXPECT_EQ(to_text(graph), R"(graph
size B = 4, at least 1, at most 19
parameter %fc.weight: float32[8, 16] &0
parameter %fc.bias: float32[8]
args (%arg0: float32[B, 16],)
kwargs {}
%t = aten::t(self=%fc.weight): float32[16, 8] &0
%addmm = aten::addmm(self=%fc.bias, mat1=%arg0, mat2=%t, beta=1, alpha=1): float32[B, 8]
%relu = aten::relu(self=%addmm): float32[B, 8]
return %relu
)");
}

TEST(Capture, LetsSizesFollow) {
  const Graph graph = expect_same(
      model_of([](const Tensor& x) -> c10::IValue {
        const int64_t rows = x.size(0);
        const Tensor heads = x.view({rows, 2, 8}).transpose(0, 1).reshape({2 * rows, 8});
        const Tensor mask = torch::ones({rows, rows}).triu(1);
        const Tensor mean = heads.sum() / rows;
        const Tensor even = at::cat({heads, torch::arange(rows * 8, at::kFloat).view({-1, 8})})
                                .slice(0, rows, 3 * rows - 1);
        return tree::tuple({mask, mean, even, x.size(0) * 3 + 1, x.expand({3, rows, 16})});
      }),
      rows_of(16));
  EXPECT_THAT(to_text(graph), HasSubstr("shape=[2*B, 8]"));
  EXPECT_THAT(to_text(graph), HasSubstr("end=3*B - 1"));
  EXPECT_THAT(to_text(graph), HasSubstr("3*B + 1"));
}

TEST(Capture, LetsASecondSizeFollow) {
  CaptureOptions options;
  options.sizes = {{.name = "B"}, {.name = "S", .places = {{"args[0]", 1}}}};
  const StageBody model = model_of([](const Tensor& x) -> c10::IValue {
    const int64_t b = x.size(0);
    const int64_t s = x.size(1);
    const Tensor flat = x.reshape({b * s, 8});
    const Tensor positions = torch::arange(s, at::kFloat).view({1, s, 1});
    return (flat.view({b, s, 8}) + positions).sum(1) * s + b;
  });
  auto make = [](int64_t size) {
    return Arguments{{at::arange(size * 3 * size * 8, at::kFloat).view({size, 3 * size, 8}).cos()},
                     {}};
  };
  const Graph graph = expect_same(model, make, options);
  EXPECT_THAT(to_text(graph), HasSubstr("[B*S, 8]"));
}

TEST(Capture, FreezesSizesWhereAsked) {
  CaptureOptions options;
  options.sizes = {};
  const Graph graph =
      expect_same(model_of([](const Tensor& x) { return x.view({-1}); }), rows_of(3), options, {4});
  EXPECT_THROW(GraphProgram(graph).run({batch(5, 3)}), MetadataError);
}

TEST(Capture, KeepsInPlaceOperatorsAndViews) {
  const Tensor w = parameter({16}, 3);
  expect_same(model_of(
                  [&](const Tensor& x) -> c10::IValue {
                    Tensor y = x * w;
                    const Tensor left = y.narrow(1, 0, 8);
                    left.mul_(2);
                    const Tensor all = y.view({-1});
                    all.add_(1);
                    y.index_put_({at::indexing::Slice(), 3}, 0.5);
                    return tree::tuple({y, left.sum(), y.t()});
                  },
                  {{"w", w}}),
              rows_of(16));
}

TEST(Capture, ChangesInputsInPlaceAsTheModelDoes) {
  expect_same(model_of([](const Tensor& x) -> c10::IValue { return x.add_(1).mul_(2).exp(); }),
              rows_of(6));
}

TEST(Capture, KeepsListsAndSeveralResults) {
  expect_same(
      model_of([](const Tensor& x) -> c10::IValue {
        const std::vector<Tensor> parts = x.split(5, 1);
        const std::vector<Tensor> chunks = x.chunk(2, 1);
        const auto [values, indices] = x.topk(3, 1);
        const auto [normal, mean, rstd] = at::native_layer_norm(x, {16}, {}, {}, 1e-5);
        return tree::dict({{"cat", at::cat({parts[3], parts[0], chunks[1]}, 1)},
                           {"stack", at::stack(chunks)},
                           {"top", tree::tuple({values, indices})},
                           {"norm", normal * rstd},
                           {"index", x.index({at::indexing::Slice(), torch::tensor({3, 1})})},
                           {"mask", x.index({torch::arange(x.size(0)), indices.select(1, 0)})},
                           {"none", c10::IValue()}});
      }),
      rows_of(16));
}

TEST(Capture, UpdatesBuffersWhenItRuns) {
  const Tensor mean = at::zeros({6});
  const Tensor var = at::ones({6});
  const Tensor count = at::zeros({}, at::kLong);
  const Tensor w = parameter({6}, 4);
  const Graph graph = expect_same(
      model_of(
          [&](const Tensor& x) {
            count.add_(1);
            return at::batch_norm(x, w, {}, mean, var, true, 0.1, 1e-5, false);
          },
          {{"bn.weight", w}}, {{"bn.mean", mean}, {"bn.var", var}, {"bn.count", count}}),
      rows_of(6), {}, {4, 5, 9});
  GraphProgram(graph).run({batch(4, 6)});
  EXPECT_EQ(count.item<int64_t>(), 1);
}

TEST(Capture, KnowsTheLeastSize) {
  const Graph graph = expect_same(model_of([](const Tensor& x) {
                                    if (x.size(0) == 1)
                                      throw std::runtime_error("one row has no variance");
                                    return x.var(0);
                                  }),
                                  rows_of(3), {}, {4, 5, 2});
  EXPECT_THAT(to_text(graph), HasSubstr("size B = 4, at least 2"));
  EXPECT_THROW(GraphProgram(graph).run({batch(1, 3)}), MetadataError);
}

TEST(Capture, DrawsTheNumbersOfTheModel) {
  const Graph graph =
      expect_same(model_of([](const Tensor& x) -> c10::IValue {
                    at::rand({3});  // not read, but the next draw follows it
                    const Tensor kept = at::dropout(x, 0.5, true);
                    return kept + at::randn_like(kept) + torch::rand({x.size(0), 1});
                  }),
                  rows_of(7));
  EXPECT_EQ(ops_of(graph).front(), "aten::rand");
}

TEST(Capture, KeepsGeneratorsThatWereGiven) {
  at::Generator generator = at::globalContext().defaultGenerator(c10::kCPU).clone();
  const StageBody model = model_of([&](const Tensor& x) {
    return x + at::rand({x.size(0), 1}, generator);
  });
  generator.set_current_seed(11);
  const Tensor before = generator.get_state();
  const Graph graph = capture(model, rows_of(3)(4));
  EXPECT_TRUE(generator.get_state().equal(before));
  const Tensor expected = model.forward({batch(4, 3)}, {}).toTensor();
  generator.set_current_seed(11);
  EXPECT_TRUE(GraphProgram(graph).run({batch(4, 3)}).toTensor().equal(expected));
}

TEST(Capture, TiesParametersWithSeveralNames) {
  const Tensor w = parameter({5, 5}, 5);
  const Graph graph =
      expect_same(model_of([&](const Tensor& x) { return x.mm(w).tanh().mm(w.t()); },
                           {{"embed.weight", w}, {"head.weight", w}}),
                  rows_of(5));
  ASSERT_EQ(graph.parts().states.size(), 1U);
  EXPECT_EQ(graph.parts().states[0].other_names, std::vector<std::string>{"head.weight"});
  EXPECT_NE(graph.find_state("head.weight"), nullptr);
}

TEST(Capture, HoldsTensorsThatNobodyNamed) {
  const Tensor outside = parameter({5}, 6);
  const Tensor table = at::arange(5, at::kFloat);
  const Graph graph =
      expect_same(model_of([&](const Tensor& x) {
                    Tensor filled = torch::empty({5});
                    for (int i = 0; i < 5; ++i)
                      filled.mutable_data_ptr<float>()[i] = static_cast<float>(i);
                    return x * outside + table + torch::tensor({1.F, 2.F, 3.F, 4.F, 5.F}) + filled;
                  }),
                  rows_of(5));
  ASSERT_EQ(graph.parts().states.size(), 3U) << to_text(graph);
  EXPECT_EQ(graph.parts().states[0].kind, GraphState::Kind::kParameter);
  EXPECT_TRUE(graph.parts().states[0].tensor.is_same(outside));
  EXPECT_EQ(graph.parts().states[2].kind, GraphState::Kind::kConstant);
  EXPECT_TRUE(graph.parts().states[2].tensor.equal(at::arange(5, at::kFloat)));
}

TEST(Capture, CopiesMemoryThatItDoesNotOwn) {
  const Graph graph = expect_same(
      model_of([](const Tensor& x) {
        std::vector<float> local = {1.F, 2.F, 4.F};
        return x + at::from_blob(local.data(), {3});  // an operator that keeps none of it
      }),
      rows_of(3));
  EXPECT_EQ(graph.parts().states.size(), 1U);
}

TEST(Capture, ReturnsMemoryThatItDoesNotOwn) {
  const Graph graph = expect_same(model_of([](const Tensor& x) -> c10::IValue {
                                    static float shared[] = {1.F, 2.F, 4.F};
                                    Tensor filled = torch::empty({2});
                                    filled.mutable_data_ptr<float>()[0] = 3;
                                    filled.mutable_data_ptr<float>()[1] = 5;
                                    return tree::tuple({x + 1, at::from_blob(shared, {3}), filled});
                                  }),
                                  rows_of(3));
  EXPECT_EQ(graph.parts().nodes.size(), 1U) << to_text(graph);
  EXPECT_EQ(graph.parts().states.size(), 2U);
}

TEST(Capture, KeepsRegionsWithoutGradients) {
  const Graph graph = expect_same(model_of([](const Tensor& x) -> c10::IValue {
                                    Tensor scale;
                                    {
                                      const c10::NoGradGuard no_grad;
                                      scale = x.abs().amax(1, true);
                                    }
                                    return x / scale + x.detach() + x.data() * 2;
                                  }),
                                  rows_of(3));
  EXPECT_THAT(to_text(graph), HasSubstr("float32[B, 3] no_grad"));
}

TEST(Capture, KeepsRegionsOfAutocast) {
  const Tensor w = parameter({16, 16}, 7);
  const Graph graph = expect_same(model_of(
                                      [&](const Tensor& x) {
                                        at::autocast::set_autocast_enabled(c10::kCPU, true);
                                        at::autocast::increment_nesting();
                                        const Tensor y = x.mm(w).relu().mm(w);
                                        if (at::autocast::decrement_nesting() == 0)
                                          at::autocast::clear_cache();
                                        at::autocast::set_autocast_enabled(c10::kCPU, false);
                                        return y.to(at::kFloat).mm(w);
                                      },
                                      {{"w", w}}),
                                  rows_of(16));
  EXPECT_THAT(to_text(graph), HasSubstr("autocast(cpu, bfloat16)"));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(c10::kCPU));
}

// Without the cache, the gradients of two casts of a weight are added in float32, not in bfloat16.
TEST(Capture, KeepsRegionsOfAutocastWithoutItsCache) {
  const Tensor w = parameter({16, 16}, 7);
  const Graph graph = expect_same(model_of(
                                      [&](const Tensor& x) {
                                        at::autocast::set_autocast_enabled(c10::kCPU, true);
                                        at::autocast::set_autocast_cache_enabled(false);
                                        at::autocast::increment_nesting();
                                        const Tensor y = x.mm(w).relu().mm(w);
                                        if (at::autocast::decrement_nesting() == 0)
                                          at::autocast::clear_cache();
                                        at::autocast::set_autocast_cache_enabled(true);
                                        at::autocast::set_autocast_enabled(c10::kCPU, false);
                                        return y;
                                      },
                                      {{"w", w}}),
                                  rows_of(16));
  EXPECT_THAT(to_text(graph), HasSubstr("autocast(cpu, bfloat16, uncached)"));
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
}

TEST(Capture, DropsWhatNobodyNeeds) {
  const Tensor w = parameter({4}, 8);
  const Graph graph = expect_same(model_of(
                                      [&](const Tensor& x) {
                                        const Tensor unused = (x * w).exp();
                                        Tensor changed = x.clone();
                                        changed.add_(1);
                                        const Tensor seen_through_a_view = x.clone();
                                        seen_through_a_view.view({-1}).mul_(3);
                                        return seen_through_a_view + 1;
                                      },
                                      {{"w", w}}),
                                  rows_of(4));
  EXPECT_EQ(ops_of(graph), (std::vector<std::string>{"aten::clone", "aten::view",
                                                     "aten::mul_.Scalar", "aten::add.Scalar"}));
}

TEST(Capture, NamesRegions) {
  const Graph graph = expect_same(model_of([](const Tensor& x) {
                                    const auto outer = scope("decoder");
                                    Tensor y = x + 1;
                                    {
                                      const auto inner = scope("mask");
                                      y = y.tril();
                                    }
                                    pipe_split();
                                    return y * 2;
                                  }),
                                  rows_of(4));
  EXPECT_THAT(to_text(graph), HasSubstr("in decoder.mask\n"));
  EXPECT_THAT(to_text(graph), HasSubstr("pipe_split: stagecraft::pipe_split() in decoder\n"));
  const auto outside = scope("nothing happens");
  pipe_split();
}

TEST(Capture, TakesTreesByPositionAndByName) {
  const StageBody model = {[](const Args& args, const Kwargs& kwargs) -> c10::IValue {
    const auto& pair = args[0].toTupleRef().elements();
    const c10::IValue& bias = kwargs.get("bias");
    const Tensor sum = pair[0].toTensor() + pair[1].toGenericDict().at("b").toTensor();
    return bias.isNone() ? sum : sum + bias.toTensor();
  }};
  expect_same(model, [](int64_t rows) {
    return Arguments{{tree::tuple({batch(rows, 3), tree::dict({{"b", batch(rows, 3)}})})},
                     {{"bias", batch(1, 3)}}};
  });
  expect_same(model, [](int64_t rows) {
    return Arguments{{tree::tuple({batch(rows, 3), tree::dict({{"b", batch(rows, 3)}})})},
                     {{"bias", c10::IValue()}}};
  });
}

TEST(Capture, ComputesWhatAModelKeepsOnce) {
  Tensor cache;
  expect_same(model_of([&](const Tensor& x) {
                if (!cache.defined()) cache = at::arange(3, at::kFloat).exp();
                return x * cache;
              }),
              rows_of(3));
}

TEST(Capture, KnowsWhereAViewIsACopy) {
  const Graph graph = expect_same(model_of([](const Tensor& x) {
                                    const Tensor h = x * 2;
                                    h.t().reshape({-1}).add_(1);  // a view of one row alone
                                    return h;
                                  }),
                                  rows_of(3), {}, {4, 5, 2});
  EXPECT_THAT(to_text(graph), HasSubstr("at least 2"));
}

TEST(Capture, ChangesInPlaceWithoutGradients) {
  expect_same(model_of([](const Tensor& x) {
                const Tensor h = x * 2;
                {
                  const c10::NoGradGuard no_grad;
                  h.slice(1, 0, 1).zero_();
                }
                return h + 1;
              }),
              rows_of(3));
}

TEST(Capture, KeepsCastsOverARegionWithoutAutocast) {
  const Tensor w = parameter({16, 16}, 9);
  expect_same(model_of(
                  [&](const Tensor& x) {
                    at::autocast::set_autocast_enabled(c10::kCPU, true);
                    at::autocast::increment_nesting();
                    Tensor y = x.matmul(w);
                    at::autocast::set_autocast_enabled(c10::kCPU, false);
                    y = y.to(at::kFloat).softmax(-1);
                    at::autocast::set_autocast_enabled(c10::kCPU, true);
                    y = y.matmul(w);
                    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
                    at::autocast::set_autocast_enabled(c10::kCPU, false);
                    return y;
                  },
                  {{"w", w}}),
              rows_of(16));
}

TEST(Capture, KeepsShapesThatDependOnElements) {
  const Tensor w = parameter({3}, 10);
  expect_same(model_of(
                  [&](const Tensor& x) -> c10::IValue {
                    const Tensor mask = x.sum(1) > 0.1;
                    const Tensor rows = x.index({mask}) * w;
                    const Tensor places = mask.nonzero().squeeze(1);
                    return tree::tuple({at::zeros_like(x).index_add(0, places, rows),
                                        x.masked_select(x > 0.2).sum()});
                  },
                  {{"w", w}}),
              rows_of(3));
}

TEST(Capture, TakesNoSizesThatWereNotTried) {
  auto padded = [](const Tensor& x) { return at::constant_pad_nd(x, {0, 0, 0, 64 - x.size(0)}); };
  const GraphProgram program(expect_same(model_of(padded), rows_of(3), {}, {1, 4, 19}));
  EXPECT_ERROR(program.run({batch(20, 3)}, {}), MetadataError,
               "args[0]: B is 20, expected at most 19, the largest size that was tried; capture it "
               "with a larger SizeSpec::probe");
  const GraphProgram wider(
      expect_same(model_of(padded), rows_of(3), {.sizes = {{.probe = 60}}}, {1, 4, 60}));
  EXPECT_ERROR(wider.run({batch(61, 3)}, {}), MetadataError, "expected at most 60");
  EXPECT_ERROR(capture(model_of([](const Tensor& x) {
                         return at::constant_pad_nd(x, {0, 0, 0, (64 - x.size(0) % 64) % 64});
                       }),
                       rows_of(3)(4), {.sizes = {{.probe = 65}}}),
               CaptureError, "argument 'pad' cannot follow the sizes");
}

TEST(Capture, FindsTheLeastSize) {
  const Graph graph = capture(
      model_of([](const Tensor& x) { return std::get<0>(x.mm(x.t()).topk(3, 1)); }), rows_of(3)(8));
  EXPECT_EQ(graph.parts().sizes[0].least, 3);
}

TEST(Capture, TakesSlicesThatAreTheWhole) {
  const Tensor mask = torch::ones({16, 16}).tril();
  const auto arguments = [](int64_t length) { return Arguments{{batch(3, length)}, {}}; };
  expect_same(model_of(
                  [&](const Tensor& x) {
                    const at::indexing::Slice to(0, x.size(1));
                    return x.mm(mask.index({to, to}));
                  },
                  {}, {{"mask", mask}}),
              arguments, {.sizes = {{.name = "S", .places = {{"args[0]", 1}}, .probe = 16}}},
              {4, 9, 15, 16});
}

TEST(Capture, KeepsStatesThatAnOperatorGivesBack) {
  const Tensor mask = torch::ones({3});
  const Graph graph =
      expect_same(model_of([&](const Tensor& x) { return x * mask.to(x.scalar_type()) + mask; }, {},
                           {{"mask", mask}}),
                  rows_of(3));
  EXPECT_EQ(ops_of(graph), (std::vector<std::string>{"aten::mul.Tensor", "aten::add.Tensor"}));
}

TEST(Capture, ReadsNoElementsForTheShapeAlone) {
  const Graph graph = expect_same(model_of([](const Tensor& x) {
                                    return x + torch::rand_like(torch::empty({x.size(0), 3}));
                                  }),
                                  rows_of(3));
  EXPECT_TRUE(graph.parts().states.empty());
}

TEST(Capture, RunsModelsThatTakeNoGradientsForSomeArguments) {
  const auto arguments = [](int64_t rows) {
    return Arguments{{batch(rows, 3), batch(rows, 3).sign()}, {}};
  };
  const StageBody model = {[](const Args& args, const Kwargs&) -> c10::IValue {
    return at::soft_margin_loss(args[0].toTensor(), args[1].toTensor());
  }};
  const GraphProgram program(capture(model, arguments(4)));
  EXPECT_TRUE(program.run(arguments(7).args, {})
                  .toTensor()
                  .equal(model.forward(arguments(7).args, {}).toTensor()));
}

TEST(Capture, RunsModelsWhoseColumnsMeanDifferentThings) {
  const Tensor small = parameter({2, 3}, 12);
  const Tensor large = parameter({50, 3}, 13);
  expect_same(model_of(
                  [&](const Tensor& x) {
                    return at::embedding(small, x.select(1, 0)) +
                           at::embedding(large, x.select(1, 1));
                  },
                  {{"small", small}, {"large", large}}),
              [](int64_t rows) {
                const Tensor row = torch::arange(rows);
                return Arguments{{at::stack({row.remainder(2), row + 30}, 1)}, {}};
              });
  // The order of the rows must not change.
  const Tensor table = parameter({9, 3}, 14);
  expect_same(
      {[&](const Args& args, const Kwargs&) -> c10::IValue {
         return std::get<0>(at::embedding_bag(table, args[0].toTensor(), args[1].toTensor()));
       },
       {{"table", table}}},
      [](int64_t rows) {
        return Arguments{{torch::arange(rows).remainder(9), torch::arange(rows)}, {}};
      },
      {.sizes = {}}, {4});
}

TEST(Capture, KnowsTheLeastOfSeveralSizes) {
  // At B = S = 1 together it does something else than at either alone.
  const auto arguments = [](int64_t rows) { return Arguments{{at::ones({rows, 5})}, {}}; };
  const Graph graph = capture(
      model_of([](const Tensor& x) -> c10::IValue { return x.numel() == 1 ? x - 1 : x + 1; }),
      arguments(4),
      {.sizes = {{.name = "B", .places = {{"args[0]", 0}}},
                 {.name = "S", .places = {{"args[0]", 1}}}}});
  EXPECT_EQ(graph.parts().sizes[0].least, 4);
  EXPECT_EQ(graph.parts().sizes[1].least, 5);
}

TEST(Capture, DoesNotCallHooksThatWereThereBefore) {
  const Tensor w = parameter({3}, 11);
  int calls = 0;
  w.register_hook([&](const Tensor& grad) {
    ++calls;
    return grad;
  });
  capture(model_of([&](const Tensor& x) { return x * w; }, {{"w", w}}), rows_of(3)(4));
  EXPECT_EQ(calls, 0);
}

TEST(Capture, PutsBackABufferOfAnotherShape) {
  const Tensor scratch = at::zeros({2}, at::kLong);
  const StageBody model = model_of(
      [&](const Tensor& x) {
        const Tensor n = x.detach().to(at::kLong);
        Tensor out = scratch;
        out.resize_(n.sizes());
        const Tensor sum = at::add_out(out, n, n);
        return sum * 1;
      },
      {}, {{"scratch", scratch}});
  capture(model, rows_of(3)(4));
  EXPECT_EQ(scratch.sizes(), std::vector<int64_t>{2});
}

}  // namespace
}  // namespace stagecraft
