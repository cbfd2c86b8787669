#include "stagecraft/graph/archive.h"

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <caffe2/serialize/inline_container.h>
#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "stagecraft/graph/capture/capture.h"
#include "stagecraft/graph/graph_text.h"
#include "stagecraft/graph/run/program.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

using at::Tensor;

class Archive : public testing::Test {
 protected:
  Archive() { std::filesystem::create_directories(folder_); }
  ~Archive() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  /// The bytes of a file that has the text: its checksum, then the text.
  std::string sealed(const std::string& text) const {
    ArchiveWriter out(path("sealed"));
    out.add_text("text", text);
    out.finish();
    caffe2::serialize::PyTorchStreamReader in(path("sealed"));
    const auto [data, size] = in.getRecord("text");
    return {static_cast<const char*>(data.get()), size};
  }

  /// An archive of these records and nothing else.
  std::string crafted(const std::map<std::string, std::string>& records) const {
    caffe2::serialize::PyTorchStreamWriter out(path("crafted"));
    for (const auto& [name, bytes] : records) out.writeRecord(name, bytes.data(), bytes.size());
    out.writeEndOfFile();
    return path("crafted");
  }

 private:
  std::filesystem::path folder_ = std::filesystem::path(testing::TempDir()) / "stagecraft_archive";
};

TEST_F(Archive, HoldsGraphsOfAllKindsOfTensors) {
  const Tensor w = at::arange(12, at::kFloat).view({3, 4}).t().requires_grad_();  // by columns
  const Tensor wide = at::arange(4, at::kDouble).expand({3, 4});                  // not dense
  const Tensor imaginary = at::view_as_complex(at::arange(8, at::kFloat).view({4, 2})).conj();
  const Tensor none = at::zeros({0, 4});
  const Tensor half = at::ones({4}, at::kBFloat16);
  const StageBody model = {[&](const Args& args, const Kwargs&) -> c10::IValue {
                             const Tensor x = args[0].toTensor();
                             return x.mm(w.t()) + wide.sum(0) + at::real(imaginary) +
                                    at::imag(imaginary) + none.sum(0) + half;
                           },
                           {{"w", w}},
                           {{"wide", wide}, {"none", none}}};
  const Arguments example = {{at::ones({2, 3})}, {}};
  const Graph graph = capture(model, example);
  save_graph(graph, path("graph"));
  const Graph loaded = load_graph(path("graph"));
  EXPECT_EQ(to_text(loaded), to_text(graph));
  EXPECT_TRUE(GraphProgram(loaded)
                  .run(example.args, {})
                  .toTensor()
                  .equal(model.forward(example.args, {}).toTensor()));
  EXPECT_EQ(loaded.find_state("w")->tensor.strides(), w.strides());
  EXPECT_TRUE(loaded.find_state("w")->tensor.requires_grad());
}

TEST_F(Archive, HoldsExportedGraphs) {
  const std::string text = R"(graph exported
size S = 8, at least -1, at most 64
size half = 4, as floor_div(S, 2)
size even = 1, as equal(S, 2*half)
size n = 3, from %nonzero dimension 0
require even: "args[0].size(0) % 2 == 0"
parameter %w: float32[1]
constant %two: int64[]
args (%x: float32[S],)
kwargs {}
%nonzero = aten::nonzero(self=%x): int64[n, 1]
%scaled = aten::mul.Tensor(self=%w, other=n): float32[1] autocast(cpu, bfloat16, off, uncached, region 2)
cond: [%y] = stagecraft::cond(predicate=even, operands=[%x, %scaled, %two], sizes=[half, 3]): [float32[S]]
  graph exported
  size R = 8, at least 0
  size h = 4, at least 0
  size three = 3, at least 0
  args (%a: float32[R], %b: float32[1], %c: int64[], h, three)
  kwargs {}
  %mul = aten::mul.Tensor(self=%a, other=%b): float32[R]
  %add = aten::add.Tensor(self=%mul, other=%c, alpha=h): float32[R]
  %more = aten::add.Tensor(self=%add, other=three, alpha=1): float32[R]
  return (%more,)
  graph exported
  size R = 8, at least 0
  size h = 4, at least 0
  size three = 3, at least 0
  args (%a: float32[R], %b: float32[1], %c: int64[], h, three)
  kwargs {}
  return (%a,)
return %y
)";
  const Graph graph = parse_graph(text, [](const std::string& name) {
    return name == "w" ? at::full({1}, 0.5) : at::full({}, 2, at::kLong);
  });
  save_graph(graph, path("graph"));
  const Graph loaded = load_graph(path("graph"));
  EXPECT_EQ(to_text(loaded), text);
  const Tensor x = at::arange(6, at::kFloat);
  const Tensor expected = x * 2.5 + 6 + 3;
  EXPECT_TRUE(GraphProgram(graph).run({x}).toTensor().equal(expected));
  EXPECT_TRUE(GraphProgram(loaded).run({x}).toTensor().equal(expected));
  EXPECT_ERROR(GraphProgram(loaded).run({at::ones({7})}), MetadataError,
               "args[0].size(0) % 2 == 0, got S = 7");
}

TEST_F(Archive, RefusesWhatNoFileCanHold) {
  const Tensor count = at::zeros({4});
  const Tensor view = count.view({2, 2});
  const Graph sharing = capture({[&](const Args& args, const Kwargs&) -> c10::IValue {
                                   count.add_(1);
                                   return args[0].toTensor() + view.sum();
                                 },
                                 {},
                                 {{"count", count}, {"view", view}}},
                                {{at::ones({2})}, {}});
  EXPECT_ERROR(save_graph(sharing, path("x")), ArgumentError,
               "add_ changes memory that %count and %view share: they cannot be copied");
  EXPECT_FALSE(std::filesystem::exists(path("x")));
  const Tensor first = at::ones({4}).requires_grad_();
  const Tensor second = at::ones({4}).requires_grad_();
  second.set_data(first.data());
  const Graph tied = capture({[&](const Args& args, const Kwargs&) -> c10::IValue {
                                return args[0].toTensor() * first + second;
                              },
                              {{"first", first}, {"second", second}}},
                             {{at::ones({2, 4})}, {}});
  EXPECT_ERROR(save_graph(tied, path("x")), ArgumentError,
               "%first and %second share memory, and both are trained");
  const Tensor sparse = at::eye(4).to_sparse();
  const Graph with_sparse = capture({[&](const Args& args, const Kwargs&) -> c10::IValue {
                                      return at::mm(sparse, args[0].toTensor().t());
                                    }},
                                    {{at::ones({2, 4})}, {}});
  EXPECT_ERROR(save_graph(with_sparse, path("x")), ArgumentError,
               "only strided tensors can be saved in a file, got");
  EXPECT_FALSE(std::filesystem::exists(path("x.unfinished")));
}

TEST_F(Archive, SaysWhatIsWrong) {
  EXPECT_ERROR(load_graph(crafted({{"data", "1"}})), FileError,
               "it is an archive, but was not written by Stagecraft");
  EXPECT_ERROR(load_graph(crafted({{"format", "stagecraft archive 1"}})), FileError,
               "format is damaged");
  EXPECT_ERROR(load_graph(crafted({{"format", sealed("stagecraft archive 9")}})), FileError,
               "expected 'stagecraft archive 1', got 'stagecraft archive 9'");
  const std::string format = sealed("stagecraft archive 1");
  EXPECT_ERROR(load_graph(crafted({{"format", format}})), FileError,
               "tensors/index is missing or damaged");
  EXPECT_ERROR(load_graph(crafted({{"format", format}, {"tensors/index", sealed("{}")}})),
               FileError, "its list of tensors is damaged");
  EXPECT_ERROR(load_graph(crafted({{"format", format}, {"tensors/index", sealed("[]")}})),
               FileError, "model/graph is missing or damaged");
  const std::string text = "graph\nparameter %w: float32[2, 3]\nargs ()\nkwargs {}\nreturn %w\n";
  auto with = [&](const std::string& states, const std::string& index) {
    return crafted({{"format", format},
                    {"tensors/index", sealed(index)},
                    {"tensors/0", std::string(24, '\0')},
                    {"model/graph", sealed(text)},
                    {"model/states", sealed(states)}});
  };
  EXPECT_ERROR(load_graph(with("[]", "[]")), FileError, "model/states is damaged");
  EXPECT_ERROR(load_graph(with("{}", "[]")), FileError, "model has no tensor for %w");
  EXPECT_ERROR(load_graph(with("{\"w\": 0}", "[]")), FileError, "there is no tensor 0");
  auto index = [](const std::string& dtype, const std::string& sizes, const std::string& strides) {
    return "[{\"dtype\": \"" + dtype + "\", \"sizes\": " + sizes + ", \"strides\": " + strides +
           ", \"requires_grad\": false, \"checksum\": 0}]";
  };
  const std::string states = "{\"w\": 0}";
  const std::string huge = "9223372036854775807";
  EXPECT_ERROR(load_graph(with(states, "[{}]")), FileError, "tensors/0 is missing or damaged");
  EXPECT_ERROR(load_graph(with(states, index("float31", "[2,3]", "[3,1]"))), FileError,
               "tensors/0 has an unknown dtype");
  EXPECT_ERROR(load_graph(with(states, index("float32", "[2,4]", "[4,1]"))), FileError,
               "tensors/0 has 24 bytes, expected 32");
  EXPECT_ERROR(load_graph(with(states, index("float32", "[4," + huge + "]", "[1,1]"))), FileError,
               "tensors/0 has invalid sizes");
  for (const std::string& strides :
       std::vector<std::string>{"[1]", "[1,1]", "[6,2]", "[3,-1]", "[1," + huge + "]"}) {
    EXPECT_ERROR(load_graph(with(states, index("float32", "[2,3]", strides))), FileError,
                 "tensors/0 has invalid strides");
  }
  EXPECT_ERROR(load_graph(with(states, index("float32", "[2,3]", "[1,2]"))), FileError,
               "tensors/0 is damaged");
}

}  // namespace
}  // namespace stagecraft
