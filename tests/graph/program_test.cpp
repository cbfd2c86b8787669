#include "stagecraft/graph/run/program.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/library.h>

#include "stagecraft/graph/graph_text.h"
#include "stagecraft/graph/passes/move.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

using at::Tensor;

using Tensors = std::map<std::string, Tensor>;

Graph parse_program(const std::string& text, const Tensors& states = {}) {
  return parse_graph(text, [&](const std::string& name) { return states.at(name); });
}

GraphProgram program(const std::string& text, const Tensors& states = {}) {
  return GraphProgram(parse_program(text, states));
}

Tensor numbers(at::IntArrayRef shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return at::arange(1, count + 1, at::kFloat).view(shape) / 8;
}

/// What the operators below have seen on this thread: where tensors were, and which were alive
/// later.
struct Seen {
  std::map<std::string, c10::weak_intrusive_ptr<c10::StorageImpl>> noted;
  std::map<std::string, bool> was_alive;
};
thread_local Seen seen;

/// Gives sin(x), and notes the memory of x.
Tensor note(const Tensor& x, std::string name) {
  seen.noted.insert_or_assign(std::move(name), x.storage().getWeakStorageImpl());
  return x.sin();
}

/// Gives cos(x), and looks which memory is still there.
Tensor look(const Tensor& x) {
  for (const auto& [name, storage] : seen.noted) seen.was_alive[name] = !storage.expired();
  return x.cos();
}

TORCH_LIBRARY(sc_program_test, library) {
  library.def("note(Tensor x, str name) -> Tensor", &note);
  library.def("look(Tensor x) -> Tensor", &look);
}

// Sizes ------------------------------------------------------------------------------------------

TEST(Program, FollowsRules) {
  const GraphProgram halves = program(R"(graph exported
size S = 8, at least 0
size half = 4, as floor_div(S, 2)
size rest = 4, as max(S - half, 1)
size is_even = 1, as equal(2*half, S)
args (%x: float32[S],)
kwargs {}
%narrow = aten::narrow(self=%x, dim=0, start=0, length=half): float32[half] &0
%sum = aten::sum.dim_IntList(self=%narrow, dim=[0], keepdim=is_even, dtype=None): float32[1]
return (%sum, half, rest, is_even)
)");
  for (const int64_t size : {8, 9, 2}) {
    const Tensor x = numbers({size});
    const auto output = halves.run({x}).toTupleRef().elements().vec();
    const bool is_even = size % 2 == 0;
    EXPECT_TRUE(output[0].toTensor().equal(x.narrow(0, 0, size / 2).sum({0}, is_even)));
    EXPECT_EQ(output[1].toInt(), size / 2);
    EXPECT_EQ(output[2].toInt(), size - size / 2);
    ASSERT_TRUE(output[3].isBool());
    EXPECT_EQ(output[3].toBool(), is_even);
  }
}

TEST(Program, NamesTheRuleThatHasNoResult) {
  const GraphProgram divided = program(R"(graph exported
size S = 8, at least 0
size parts = 2, as floor_div(16, S)
args (%x: float32[S],)
kwargs {}
return parts
)");
  EXPECT_EQ(divided.run({numbers({5})}).toInt(), 3);
  EXPECT_ERROR(divided.run({at::empty({0})}), MetadataError,
               "parts = floor_div(16, S): a size divides by 0: 16 by 0");
}

TEST(Program, MeasuresSizes) {
  // Of a tensor that depends on elements, and of what follows from it.
  const GraphProgram found = program(R"(graph exported
size S = 8, at least 2
size n = 3, from %nonzero dimension 0
size twice = 6, as product(n, 2)
args (%x: float32[S],)
kwargs {}
%nonzero = aten::nonzero(self=%x): int64[n, 1]
%zeros = aten::zeros(size=[n + 1, twice], dtype=None, layout=None, device=None, pin_memory=None): float32[n + 1, twice]
return (%zeros, n, twice)
)");
  for (const int64_t zeros : {0, 3, 5}) {
    Tensor x = numbers({5});
    x.narrow(0, 0, zeros).zero_();
    const auto output = found.run({x}).toTupleRef().elements().vec();
    const int64_t n = 5 - zeros;
    EXPECT_EQ(output[0].toTensor().sizes(), (std::vector<int64_t>{n + 1, 2 * n}));
    EXPECT_EQ(output[1].toInt(), n);
    EXPECT_EQ(output[2].toInt(), 2 * n);
  }
}

TEST(Program, MeasuresElements) {
  const GraphProgram counted = program(R"(graph exported
size k = 2, from %max
args (%counts: int64[4], %x: float32[4, 3])
kwargs {}
%max = aten::max(self=%counts): int64[]
%narrow = aten::narrow(self=%x, dim=0, start=0, length=k): float32[k, 3] &0
return %narrow
)");
  const Tensor x = numbers({4, 3});
  EXPECT_TRUE(
      counted.run({at::tensor({1, 3, 0, 2}, at::kLong), x}).toTensor().equal(x.narrow(0, 0, 3)));
  EXPECT_EQ(counted.run({at::zeros({4}, at::kLong), x}).toTensor().size(0), 0);
  EXPECT_ERROR(counted.run({at::full({4}, 5, at::kLong), x}), GraphError,
               "narrow (aten::narrow): ");
  EXPECT_ERROR(counted.run({at::full({4}, -1, at::kLong), x}), GraphError,
               "narrow (aten::narrow): ");
}

TEST(Program, MeasuresTwoDimensionsOfWhatNothingElseReads) {
  const GraphProgram both = program(R"(graph exported
size n = 3, from %nonzero dimension 0
size dims = 2, from %nonzero dimension 1
args (%x: float32[2, 2],)
kwargs {}
%nonzero = aten::nonzero(self=%x): int64[n, dims]
return (n, dims)
)");
  const auto output = both.run({at::eye(2)}).toTupleRef().elements().vec();
  EXPECT_EQ(output[0].toInt(), 2);
  EXPECT_EQ(output[1].toInt(), 2);
}

TEST(Program, SaysWhereAMeasuredSizeHasNoResult) {
  const GraphProgram divided = program(R"(graph exported
size k = 2, from %max
size parts = 4, as floor_div(8, k)
args (%x: int64[2],)
kwargs {}
%max = aten::max(self=%x): int64[]
return parts
)");
  EXPECT_EQ(divided.run({at::full({2}, 3, at::kLong)}).toInt(), 2);
  EXPECT_ERROR(divided.run({at::zeros({2}, at::kLong)}), GraphError,
               "max (aten::max): a size divides by 0: 8 by 0");
}

TEST(Program, ChecksGuards) {
  const GraphProgram guarded = program(R"--(graph exported
size B = 4, at least 1, at most 9
size S = 8, at least 2
size rest = 0, as mod(S, 2)
size is_even = 1, as equal(rest, 0)
size is_wide = 1, as less(B, S)
require is_even: "args[0].size(1) % 2 == 0"
require is_wide: "args[0].size(0) < args[0].size(1)"
args (%x: float32[B, S],)
kwargs {}
return S
)--");
  EXPECT_EQ(guarded.run({numbers({4, 6})}).toInt(), 6);
  EXPECT_ERROR(guarded.run({numbers({4, 7})}), MetadataError,
               "the model was exported for inputs with args[0].size(1) % 2 == 0, got B = 4, S = 7");
  EXPECT_ERROR(guarded.run({numbers({4, 4})}), MetadataError,
               "for inputs with args[0].size(0) < args[0].size(1), got B = 4, S = 4");
  EXPECT_ERROR(guarded.run({numbers({10, 12})}), MetadataError,
               "args[0], dimension 0: B is 10, expected at most 9, for which the model was "
               "exported");
  EXPECT_ERROR(guarded.run({at::empty({1, 1})}), MetadataError,
               "args[0], dimension 1: S is 1, expected at least 2");
}

// Numbers ----------------------------------------------------------------------------------------

TEST(Program, NumbersForTensorsDoNotChangeDtypes) {
  struct Operation {
    std::string op;
    std::function<Tensor(const Tensor&, const c10::Scalar&)> apply;
  };
  const std::vector<Operation> operations = {
      {"aten::mul.Tensor(self=%x, other=",
       [](const Tensor& x, const c10::Scalar& s) { return x * s; }},
      {"aten::div.Tensor(self=%x, other=",
       [](const Tensor& x, const c10::Scalar& s) { return x / s; }},
      {"aten::remainder.Tensor(self=%x, other=",
       [](const Tensor& x, const c10::Scalar& s) { return at::remainder(x, s); }},
      {"aten::eq.Tensor(self=%x, other=",
       [](const Tensor& x, const c10::Scalar& s) { return x == s; }},
  };
  const std::vector<std::pair<std::string, c10::Scalar>> scalars = {
      {"3", 3}, {"1.5", 1.5}, {"True", true}, {"S", int64_t{5}}};
  for (const c10::ScalarType dtype :
       {at::kInt, at::kLong, at::kFloat, at::kBFloat16, at::kDouble, at::kByte}) {
    const Tensor x = (at::arange(5) + 1).to(dtype);
    const std::string name = std::string(dtype == at::kInt        ? "int32"
                                         : dtype == at::kLong     ? "int64"
                                         : dtype == at::kFloat    ? "float32"
                                         : dtype == at::kBFloat16 ? "bfloat16"
                                         : dtype == at::kByte     ? "uint8"
                                                                  : "float64");
    for (const Operation& operation : operations) {
      for (const auto& [text, scalar] : scalars) {
        SCOPED_TRACE(operation.op + text + " of " + name);
        const Tensor expected = operation.apply(x, scalar);
        const Tensor got =
            program("graph exported\nsize S = 5, at least 0\nargs (%x: " + name +
                    "[S],)\nkwargs {}\n%y = " + operation.op + text + "): float32[S]\nreturn %y\n")
                .run({x})
                .toTensor();
        EXPECT_EQ(got.scalar_type(), expected.scalar_type());
        EXPECT_TRUE(got.equal(expected));
      }
    }
  }
  // As the only operand it decides all the same.
  EXPECT_EQ(program("graph exported\nargs ()\nkwargs {}\n%y = aten::neg(self=1.5): float32[]\n"
                    "return %y\n")
                .run({})
                .toTensor()
                .item<double>(),
            -1.5);
}

// Branches ---------------------------------------------------------------------------------------

// x * w, or the first `half` rows of x twice.
constexpr const char* kCond = R"(graph exported
size S = 4, at least 0
size half = 2, as floor_div(S, 2)
parameter %w: float32[3]
args (%p: bool[], %x: float32[S, 3])
kwargs {}
cond: [%y, %z] = stagecraft::cond(predicate=%p, operands=[%x, %w], sizes=[half, 7]): [float32[S, 3], float32[?2, 3]]
  graph exported
  size R = 4, at least 0
  size h = 2, at least 0
  size seven = 7, at least 0
  args (%a: float32[R, 3], %b: float32[3], h, seven)
  kwargs {}
  %mul = aten::mul.Tensor(self=%a, other=%b): float32[R, 3]
  %exp = aten::exp(self=%b): float32[3]
  %row = aten::unsqueeze(self=%exp, dim=0): float32[1, 3]
  return (%mul, %row)
  graph exported
  size R = 4, at least 0
  size h = 2, at least 0
  size seven = 7, at least 0
  args (%a: float32[R, 3], %b: float32[3], h, seven)
  kwargs {}
  %add = aten::add.Tensor(self=%a, other=seven, alpha=1): float32[R, 3]
  %narrow = aten::narrow(self=%a, dim=0, start=0, length=h): float32[h, 3] &0
  %sin = aten::sin(self=%narrow): float32[h, 3]
  return (%add, %sin)
%sum = aten::sum(self=%z, dtype=None): float32[]
%out = aten::add.Tensor(self=%y, other=%sum, alpha=1): float32[S, 3]
return %out
)";

TEST(Program, RunsOneBranch) {
  for (const bool holds : {true, false}) {
    for (const int64_t rows : {4, 7}) {
      const Tensor w = numbers({3}).requires_grad_();
      const Tensor x = numbers({rows, 3}).requires_grad_();
      const Tensor mine_w = w.detach().clone().requires_grad_();
      const Tensor mine_x = x.detach().clone().requires_grad_();
      const Tensor got = program(kCond, {{"w", w}}).run({at::full({}, holds), x}).toTensor();
      const Tensor expected = holds ? mine_x * mine_w + mine_w.exp().sum()
                                    : mine_x + 7 + mine_x.narrow(0, 0, rows / 2).sin().sum();
      EXPECT_TRUE(got.equal(expected));
      got.sum().backward();
      expected.sum().backward();
      EXPECT_TRUE(x.grad().equal(mine_x.grad()));
      EXPECT_EQ(w.grad().defined(), holds);
      EXPECT_TRUE(!holds || w.grad().equal(mine_w.grad()));
    }
  }
}

TEST(Program, RunsBranchesOnNumbers) {
  const GraphProgram chosen = program(R"(graph exported
size S = 4, at least 0
size is_long = 0, as less(4, S)
args (%x: float32[S],)
kwargs {}
cond: [%y] = stagecraft::cond(predicate=is_long, operands=[%x], sizes=[]): [float32[S]]
  graph exported
  size R = 4, at least 0
  args (%a: float32[R],)
  kwargs {}
  %neg = aten::neg(self=%a): float32[R]
  return (%neg,)
  graph exported
  size R = 4, at least 0
  args (%a: float32[R],)
  kwargs {}
  return (%a,)
return %y
)");
  EXPECT_TRUE(chosen.run({numbers({4})}).toTensor().equal(numbers({4})));
  EXPECT_TRUE(chosen.run({numbers({5})}).toTensor().equal(-numbers({5})));
}

TEST(Program, RunsBranchesInBranches) {
  const Graph nested = parse_program(R"(graph exported
args (%p: bool[], %q: bool[], %x: float32[2])
kwargs {}
outer: [%y] = stagecraft::cond(predicate=%p, operands=[%q, %x], sizes=[]): [float32[2]]
  graph exported
  args (%q: bool[], %x: float32[2])
  kwargs {}
  inner: [%y] = stagecraft::cond(predicate=%q, operands=[%x], sizes=[]): [float32[2]]
    graph exported
    args (%x: float32[2],)
    kwargs {}
    %one = aten::add.Tensor(self=%x, other=1, alpha=1): float32[2]
    return (%one,)
    graph exported
    args (%x: float32[2],)
    kwargs {}
    %view = aten::view(self=%x, size=[1]): float32[1]
    return (%view,)
  return (%y,)
  graph exported
  args (%q: bool[], %x: float32[2])
  kwargs {}
  %two = aten::add.Tensor(self=%x, other=2, alpha=1): float32[2]
  return (%two,)
return %y
)");
  const GraphProgram run(nested);
  auto with = [&](bool p, bool q) {
    return run.run({at::full({}, p), at::full({}, q), at::zeros({2})}).toTensor();
  };
  EXPECT_TRUE(with(true, true).equal(at::full({2}, 1.0F)));
  EXPECT_TRUE(with(false, true).equal(at::full({2}, 2.0F)));
  // The names of all nodes around the one that fails.
  EXPECT_ERROR(with(true, false), GraphError,
               "outer (stagecraft::cond): inner (stagecraft::cond): view (aten::view): ");
}

TEST(Program, MovesBranchesToo) {
  const Tensor w = numbers({3});
  const std::string text =
      to_text(move_to(parse_program(kCond, {{"w", w}}), c10::Device(c10::kMeta)));
  for (const char* value : {"%w: float32[3]@meta", "%a: float32[R, 3]@meta",
                            "%row = aten::unsqueeze(self=%exp, dim=0): float32[1, 3]@meta",
                            "%sin = aten::sin(self=%narrow): float32[h, 3]@meta"}) {
    EXPECT_THAT(text, testing::HasSubstr(value));
  }
  // Also what a branch makes of nothing.
  const Graph made = parse_program(R"(graph exported
args (%p: bool[],)
kwargs {}
cond: [%y] = stagecraft::cond(predicate=%p, operands=[], sizes=[]): [float32[2]]
  graph exported
  args ()
  kwargs {}
  %ones = aten::ones(size=[2], dtype=None, layout=None, device=device("cpu"), pin_memory=None): float32[2]
  return (%ones,)
  graph exported
  args ()
  kwargs {}
  %zeros = aten::zeros(size=[2], dtype=None, layout=None, device=None, pin_memory=None): float32[2]
  return (%zeros,)
return %y
)");
  const std::string moved = to_text(move_to(made, c10::Device(c10::kMeta)));
  EXPECT_THAT(moved, testing::HasSubstr(
                         R"(aten::ones(size=[2], dtype=None, layout=None, device=device("meta"))"));
  EXPECT_THAT(moved,
              testing::HasSubstr(
                  R"(aten::zeros(size=[2], dtype=None, layout=None, device=device("meta"))"));
}

// Modes ------------------------------------------------------------------------------------------

std::string mm(const std::string& result, const std::string& x, const std::string& mode) {
  return "%" + result + " = aten::mm(self=%" + x + ", mat2=%w): float32[4, 4]" + mode + "\n";
}

/// How often weights are cast while products in the given modes run, one after another.
std::size_t count_casts(const std::vector<std::string>& modes) {
  std::string text =
      "graph exported\nparameter %w: float32[4, 4]\nargs (%x: float32[4, 4],)\nkwargs {}\n";
  std::string outputs;
  for (std::size_t i = 0; i < modes.size(); ++i) {
    const std::string name = "mm_" + std::to_string(i);
    text += mm(name, "x", modes[i].empty() ? "" : " autocast(" + modes[i] + ")");
    outputs += "%" + name + ", ";
  }
  const Tensor w = numbers({4, 4}).requires_grad_();
  const c10::IValue output =
      program(text + "return (" + outputs + ")\n", {{"w", w}}).run({numbers({4, 4})});
  // Where the gradients of the weights come through.
  std::set<const torch::autograd::Node*> casts;
  for (const c10::IValue& each : output.toTupleRef().elements()) {
    const auto& edges = each.toTensor().grad_fn()->next_edges();
    if (edges.at(1).function->name() == "ToCopyBackward0") casts.insert(edges[1].function.get());
  }
  return casts.size();
}

TEST(Program, CastsWeightsOnceARegion) {
  EXPECT_EQ(count_casts({"", ""}), 0U);
  EXPECT_EQ(count_casts({"cpu, bfloat16, region 1", "cpu, bfloat16, region 1"}), 1U);
  EXPECT_EQ(count_casts({"cpu, bfloat16, region 1", "cpu, bfloat16, region 2"}), 2U);
  EXPECT_EQ(count_casts({"cpu, bfloat16, region 1", "", "cpu, bfloat16, region 2"}), 2U);
  // Switched off in between, inside the region; and one region around all.
  EXPECT_EQ(count_casts({"cpu, bfloat16, region 1", "cpu, bfloat16, off, region 1",
                         "cpu, bfloat16, region 1"}),
            1U);
  EXPECT_EQ(count_casts({"cpu, bfloat16", "", "cpu, bfloat16"}), 1U);
  EXPECT_EQ(count_casts({"cpu, bfloat16, uncached, region 1", "cpu, bfloat16, uncached, region 1"}),
            2U);
}

/// Autocast of a caller, as Python's `with torch.autocast("cpu")`.
class CallersAutocast {
 public:
  CallersAutocast() {
    at::autocast::set_autocast_enabled(c10::kCPU, true);
    at::autocast::set_autocast_dtype(c10::kCPU, at::kBFloat16);
    at::autocast::increment_nesting();
  }
  ~CallersAutocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(c10::kCPU, false);
  }
  CallersAutocast(const CallersAutocast&) = delete;
  CallersAutocast& operator=(const CallersAutocast&) = delete;
};

TEST(Program, SwitchesAutocastOffInsideTheCallers) {
  const GraphProgram run = program(
      "graph exported\nparameter %w: float32[4, 4]\nargs (%x: float32[4, 4],)\nkwargs {}\n" +
          mm("a", "x", "") + mm("b", "x", " autocast(cpu, bfloat16, off, region 1)") +
          mm("c", "x", " autocast(cpu, float16, region 2)") + mm("d", "x", "") +
          "return (%a, %b, %c, %d)\n",
      {{"w", numbers({4, 4})}});
  auto dtypes = [&] {
    std::vector<c10::ScalarType> found;
    for (const c10::IValue& value : run.run({numbers({4, 4})}).toTupleRef().elements().vec()) {
      found.push_back(value.toTensor().scalar_type());
    }
    return found;
  };
  using Dtypes = std::vector<c10::ScalarType>;
  EXPECT_EQ(dtypes(), (Dtypes{at::kFloat, at::kFloat, at::kHalf, at::kFloat}));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(c10::kCPU));
  {
    const CallersAutocast autocast;
    EXPECT_EQ(dtypes(), (Dtypes{at::kBFloat16, at::kFloat, at::kHalf, at::kBFloat16}));
    EXPECT_TRUE(at::autocast::is_autocast_enabled(c10::kCPU));
    EXPECT_EQ(at::autocast::get_autocast_dtype(c10::kCPU), at::kBFloat16);
    EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
  }
}

TEST(Program, RestoresTheModesWhenANodeFails) {
  const GraphProgram run =
      program("graph exported\nargs (%x: float32[4, 4], %w: float32[?4, 4])\nkwargs {}\n" +
              mm("a", "x", " no_grad autocast(cpu, bfloat16, uncached, region 1)") + "return %a\n");
  EXPECT_ERROR(run.run({numbers({4, 4}), numbers({3, 4})}), GraphError, "a (aten::mm): ");
  EXPECT_FALSE(at::autocast::is_autocast_enabled(c10::kCPU));
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
  EXPECT_TRUE(c10::GradMode::is_enabled());
  EXPECT_EQ(at::autocast::increment_nesting(), 1);
  at::autocast::decrement_nesting();
}

TEST(Program, SwitchesGradientsOffInARegion) {
  const GraphProgram run = program(R"(graph exported
args (%x: float32[2],)
kwargs {}
%a = aten::exp(self=%x): float32[2]
%b = aten::mul.Tensor(self=%a, other=%x): float32[2] no_grad
%c = aten::mul.Tensor(self=%a, other=%b): float32[2]
return (%a, %b, %c)
)");
  const Tensor x = numbers({2}).requires_grad_();
  const auto output = run.run({x}).toTupleRef().elements().vec();
  EXPECT_TRUE(output[0].toTensor().requires_grad());
  EXPECT_FALSE(output[1].toTensor().requires_grad());
  output[2].toTensor().sum().backward();
  const Tensor b = x.detach().exp() * x.detach();
  EXPECT_TRUE(x.grad().equal(b * x.detach().exp()));
  // The caller's switch counts outside of the region too.
  const c10::NoGradGuard no_grad;
  for (const c10::IValue& value : run.run({x}).toTupleRef().elements().vec()) {
    EXPECT_FALSE(value.toTensor().requires_grad());
  }
  EXPECT_FALSE(c10::GradMode::is_enabled());
}

TEST(Program, BranchesRunInTheModeOfTheirNode) {
  const GraphProgram run = program(R"(graph exported
args (%p: bool[], %x: float32[2, 2])
kwargs {}
cond: [%y] = stagecraft::cond(predicate=%p, operands=[%x], sizes=[]): [float32[2, 2]] no_grad autocast(cpu, bfloat16, region 1)
  graph exported
  args (%a: float32[2, 2],)
  kwargs {}
  %mm = aten::mm(self=%a, mat2=%a): bfloat16[2, 2]
  return (%mm,)
  graph exported
  args (%a: float32[2, 2],)
  kwargs {}
  %mm = aten::mm(self=%a, mat2=%a): bfloat16[2, 2] autocast(cpu, bfloat16, off)
  return (%mm,)
return %y
)");
  const Tensor x = numbers({2, 2}).requires_grad_();
  const Tensor on = run.run({at::full({}, true), x}).toTensor();
  EXPECT_EQ(on.scalar_type(), at::kBFloat16);
  EXPECT_FALSE(on.requires_grad());
  EXPECT_EQ(run.run({at::full({}, false), x}).toTensor().scalar_type(), at::kFloat);
  EXPECT_FALSE(at::autocast::is_autocast_enabled(c10::kCPU));
}

// Last uses --------------------------------------------------------------------------------------

TEST(Program, ValuesDieAtTheirLastUse) {
  seen = {};
  program(R"(graph exported
args (%x: float32[4],)
kwargs {}
%exp = aten::exp(self=%x): float32[4]
%once = aten::neg(self=%exp): float32[4]
%a = sc_program_test::note(x=%once, name="once"): float32[4]
%b = sc_program_test::note(x=%exp, name="twice"): float32[4]
%c = sc_program_test::look(x=%a): float32[4]
%d = aten::add.Tensor(self=%c, other=%exp, alpha=1): float32[4]
return (%b, %d)
)")
      .run({numbers({4})});
  EXPECT_EQ(seen.was_alive, (std::map<std::string, bool>{{"once", false}, {"twice", true}}));
  for (const auto& [name, storage] : seen.noted) EXPECT_TRUE(storage.expired()) << name;
}

TEST(Program, WhatIsOnlyMeasuredDies) {
  seen = {};
  const Tensor got = program(R"(graph exported
size n = 2, from %view dimension 0
size m = 4, from %kept dimension 0
args (%x: float32[4],)
kwargs {}
%exp = aten::exp(self=%x): float32[4] &0
%a = sc_program_test::note(x=%exp, name="measured"): float32[4]
%view = aten::view(self=%exp, size=[2, 2]): float32[n, 2] &0
%kept = aten::neg(self=%x): float32[m]
%b = sc_program_test::note(x=%kept, name="measured and read"): float32[4]
%c = sc_program_test::look(x=%a): float32[4]
%mul = aten::mul.Tensor(self=%c, other=n): float32[4]
%out = aten::mul.Tensor(self=%mul, other=%kept): float32[4]
return (%out, %b)
)")
                         .run({numbers({4})})
                         .toTupleRef()
                         .elements()[0]
                         .toTensor();
  EXPECT_TRUE(got.equal(numbers({4}).exp().sin().cos() * 2 * -numbers({4})));
  EXPECT_EQ(seen.was_alive,
            (std::map<std::string, bool>{{"measured", false}, {"measured and read", true}}));
}

}  // namespace
}  // namespace stagecraft
