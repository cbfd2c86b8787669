#include "stagecraft/partition/pipe_file.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/generated/variable_factories.h>

#include "stagecraft/graph/capture/scope.h"
#include "stagecraft/graph/graph_text.h"
#include "stagecraft/graph/run/program.h"
#include "stagecraft/stage/callable.h"
#include "tests/partition/pipe_check.h"
#include "tests/partition/sample_tensors.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

using at::Tensor;

class PipeFile : public testing::Test {
 protected:
  PipeFile() { std::filesystem::create_directories(folder_); }
  ~PipeFile() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() /
      ("stagecraft_pipe_file_" + std::to_string(std::random_device()()));
};

Tensor pipe_file_rows(int64_t count) {
  return sample_rows(count, 4);
}
Arguments pipe_file_batch(int64_t count) {
  return {{pipe_file_rows(count)}, {}};
}

/// A shared weight, a buffer, a constant, a frozen weight in a different order of dimensions.
Pipe make_pipe() {
  const Tensor w = torch::arange(16, at::kFloat).sin().view({4, 4}).requires_grad_();
  const Tensor frozen = torch::arange(16, at::kFloat).cos().view({4, 4}).t();
  const Tensor mean = torch::ones({4});
  StageBody body = stage_body(
      [w, frozen, mean](const Tensor& x) {
        const Tensor a = x.mm(w).tanh() - mean + torch::full({4}, 0.5);
        pipe_split();
        return a.mm(frozen).mm(w.t()) * x.size(0);
      },
      {{"embed", w}, {"head", w}, {"frozen", frozen}});
  body.buffers = {{"mean", mean}};
  return pipeline(body, pipe_file_batch(4));
}

TEST_F(PipeFile, ComesBackWhole) {
  const Pipe pipe = make_pipe();
  save_pipe(pipe, path("pipe"));
  EXPECT_FALSE(std::filesystem::exists(path("pipe.unfinished")));
  const Pipe loaded = load_pipe(path("pipe"));
  EXPECT_EQ(to_text(loaded.graph()), to_text(pipe.graph()));
  EXPECT_EQ(loaded.call_text(), pipe.call_text());
  EXPECT_EQ(loaded.ties().size(), pipe.ties().size());
  for (int32_t i = 0; i < 2; ++i) {
    const Graph& mine = pipe.stage_graph(StageId(i));
    const Graph& theirs = loaded.stage_graph(StageId(i));
    EXPECT_EQ(to_text(theirs), to_text(mine));
    EXPECT_EQ(to_text(load_stage(path("pipe"), StageId(i))), to_text(mine));
    for (std::size_t s = 0; s < mine.parts().states.size(); ++s) {
      const Tensor& a = mine.parts().states[s].tensor;
      const Tensor& b = theirs.parts().states[s].tensor;
      EXPECT_TRUE(a.equal(b));
      EXPECT_EQ(a.strides(), b.strides());
      EXPECT_EQ(a.requires_grad(), b.requires_grad());
      EXPECT_FALSE(a.is_same(b));
    }
  }
  // The whole graph and the first stage hold one tensor. The copy is a different one.
  EXPECT_TRUE(loaded.graph().find_state("embed")->tensor.is_same(
      loaded.stage_graph(StageId(0)).find_state("embed")->tensor));
  EXPECT_TRUE(
      loaded.run({pipe_file_rows(6)}).toTensor().equal(pipe.run({pipe_file_rows(6)}).toTensor()));
  EXPECT_EQ(train_everywhere(loaded, pipe_file_batch, {.uncut_tolerance = 1e-6}), "");
}

TEST_F(PipeFile, IsReadFromMemory) {
  const Pipe pipe = make_pipe();
  save_pipe(pipe, path("pipe"));
  std::ifstream file(path("pipe"), std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const std::span<const std::byte> whole = std::as_bytes(std::span(bytes));
  const Pipe loaded = load_pipe("a name", whole);
  EXPECT_EQ(to_text(loaded.graph()), to_text(pipe.graph()));
  EXPECT_TRUE(
      loaded.run({pipe_file_rows(3)}).toTensor().equal(pipe.run({pipe_file_rows(3)}).toTensor()));
  EXPECT_ERROR(load_pipe("a name", whole.first(bytes.size() / 2)), FileError, "a name");
  EXPECT_ERROR(load_pipe("a name", {}), FileError, "a name");
}

TEST_F(PipeFile, HoldsOneStageAlone) {
  const Pipe pipe = make_pipe();
  save_graph(pipe.stage_graph(StageId(0)), path("stage"));
  const Graph stage = load_graph(path("stage"));
  EXPECT_EQ(to_text(stage), to_text(pipe.stage_graph(StageId(0))));
  EXPECT_ERROR(load_pipe(path("stage")), FileError, "it does not contain a pipe");
  save_pipe(pipe, path("pipe"));
  EXPECT_ERROR(load_stage(path("pipe"), StageId(2)), ArgumentError,
               "expected a stage from 0 to 1, got 2");
}

TEST_F(PipeFile, SaysWhatIsWrongWithAFile) {
  EXPECT_ERROR(load_pipe(path("nowhere")), FileError, "there is no such file");
  std::ofstream(path("text")) << "not an archive at all";
  EXPECT_ERROR(load_pipe(path("text")), FileError, "it is damaged or not an archive");
  EXPECT_ERROR(save_pipe(make_pipe(), path("no/such/folder/pipe")), FileError,
               "it cannot be written");
  const Graph with_generator =
      capture({[g = at::globalContext().defaultGenerator(c10::kCPU).clone()](
                   const Args& args, const Kwargs&) -> c10::IValue {
                return args[0].toTensor() + at::rand({1}, g);
              }},
              pipe_file_batch(4));
  EXPECT_ERROR(save_graph(with_generator, path("generator")), ArgumentError,
               "a generator of its own");
  EXPECT_FALSE(std::filesystem::exists(path("generator")));
}

TEST_F(PipeFile, RefusesPlansThatDoNotFit) {
  auto with_plan = [&](const std::string& plan) {
    ArchiveWriter out(path("plan"));
    const Pipe pipe = make_pipe();
    out.add_graph("model", pipe.graph());
    for (int32_t i = 0; i < 2; ++i) {
      out.add_graph("stages/" + std::to_string(i), pipe.stage_graph(StageId(i)));
    }
    out.add_text("pipe", plan);
    out.finish();
    return path("plan");
  };
  for (const std::string plan :
       {"", "[]", "{}", R"({"stages": []})", R"({"stages": [{}, {}], "ties": []})",
        R"({"stages": [{"sources": []}, {"sources": []}], "ties": []})"}) {
    EXPECT_ERROR(load_pipe(with_plan(plan)), FileError, "its plan is damaged");
  }
}

TEST_F(PipeFile, DamageIsNoticed) {
  save_pipe(make_pipe(), path("pipe"));
  std::ifstream in(path("pipe"), std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), {});
  const std::string expected = to_text(load_pipe(path("pipe")).graph());
  const Tensor output = load_pipe(path("pipe")).run({pipe_file_rows(5)}).toTensor();
  std::mt19937 random(7);
  int refused = 0;
  for (int i = 0; i < 300; ++i) {
    std::string bytes = whole;
    if (i % 3 == 0) {
      bytes.resize(random() % whole.size());
    } else {
      for (int k = 0; k < 1 + i % 4; ++k)
        bytes[random() % bytes.size()] ^= static_cast<char>(1 + random() % 255);
    }
    std::ofstream(path("damaged"), std::ios::binary) << bytes;
    try {
      // What is not noticed lies where nothing is: padding, times, a second copy of a name.
      const Pipe pipe = load_pipe(path("damaged"));
      EXPECT_EQ(to_text(pipe.graph()), expected) << "change " << i;
      EXPECT_TRUE(pipe.run({pipe_file_rows(5)}).toTensor().equal(output)) << "change " << i;
    } catch (const FileError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 150);
}

}  // namespace
}  // namespace stagecraft
