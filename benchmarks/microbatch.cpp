// Split + merge of a tree of 8 tensors into 16 chunks: ours, the bare ATen calls, PyTorch's.

#include <array>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor_split.h>

#include "benchmarks/harness.h"
#include "benchmarks/python_reference.h"
#include "stagecraft/microbatch/merge.h"
#include "stagecraft/microbatch/split.h"
#include "stagecraft/tree/tree.h"

namespace {

using namespace stagecraft;

constexpr int64_t kChunks = 16;
using Leaves = std::array<at::Tensor, 8>;

c10::IValue as_tree(const Leaves& x) {
  return tree::dict({{"ids", x[0]},
                     {"hidden", tree::list({x[1], x[2]})},
                     {"memory", tree::tuple({x[3], tree::dict({{"k", x[4]}, {"v", x[5]}})})},
                     {"mask", x[6]},
                     {"weight", x[7]}});
}

void split_and_merge(const c10::IValue& batch, const ChunkSpec& spec, const SplitOptions& options) {
  const auto parts = split_args_kwargs_into_chunks({batch}, {}, kChunks, options);
  std::vector<c10::IValue> chunks;
  chunks.reserve(parts.size());
  for (const auto& part : parts) chunks.push_back(part.args[0]);
  benchmark::DoNotOptimize(merge_chunks(chunks, spec));
}

void bare_calls(const Leaves& leaves) {
  std::array<at::Tensor, 8> merged;
  std::array<std::vector<at::Tensor>, 8> parts;
  for (std::size_t i = 0; i < leaves.size(); ++i)
    parts[i] = at::tensor_split(leaves[i], kChunks, 0);
  for (std::size_t i = 0; i < leaves.size(); ++i) merged[i] = at::cat(parts[i], 0);
  benchmark::DoNotOptimize(merged);
}

void measure(bench::Suite& suite) {
  const std::vector<std::vector<int64_t>> shapes = {{64, 16}, {64, 1024}};
  std::vector<std::string> names;
  for (const auto& shape : shapes) names.push_back(fmt::format("{}x{}", shape[0], shape[1]));
  std::vector<std::string> arguments = {std::to_string(at::get_num_threads())};
  arguments.insert(arguments.end(), names.begin(), names.end());
  bench::PythonReference python("microbatch_pytorch.py", arguments);

  for (std::size_t i = 0; i < shapes.size(); ++i) {
    Leaves leaves;
    for (auto& leaf : leaves) leaf = at::randn(shapes[i]);
    const auto batch = as_tree(leaves);
    const auto spec = ChunkSpec::default_for(batch);
    const SplitOptions options{.args_spec = ChunkSpec::tuple({spec})};
    suite.compare(fmt::format("split+merge 8 x [{}] into {}", names[i], kChunks),
                  bench::timed([&] { split_and_merge(batch, spec, options); }),
                  {{"ATen calls", bench::timed([&] { bare_calls(leaves); }), 1.15},
                   {"PyTorch", python.run(names[i]), 0.33}});
  }
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_suite("microbatch", argc, argv, measure);
}
