// Models from archives of torch.export against the same models in Python's eager mode.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/sum.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include "benchmarks/harness.h"
#include "benchmarks/python_reference.h"
#include "stagecraft/exported/exported_archive.h"
#include "stagecraft/graph/run/program.h"
#include "stagecraft/tree/tree.h"

namespace {

using namespace stagecraft;

/// A folder that the destructor removes.
class Scratch {
 public:
  Scratch()
      : path_(std::filesystem::temp_directory_path() / fmt::format("exported-{}", ::getpid())) {}
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::string file(const std::string& model) const { return (path_ / (model + ".pt2")).string(); }
  std::string folder() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

/// The memory of this process in MB, without memory that is mapped from files.
double own_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("RssAnon:")) continue;
    std::istringstream number(line.substr(8));
    double kilobytes = 0;
    number >> kilobytes;
    return kilobytes / 1000;
  }
  return 0;
}

void compare(bench::Suite& suite, const Scratch& scratch, bench::PythonReference& python,
             const std::string& model, bool is_tiny) {
  const GraphProgram program(load_exported(scratch.file(model)));
  const Kwargs inputs = {{"input_ids", at::randint(0, 97, {2, 16}, at::kLong)}};
  const auto logits = [&] {
    return tree::flatten(program.run({}, inputs)).leaves.at(0).toTensor();
  };
  const auto forward = bench::timed([&] {
    const c10::NoGradGuard no_grad;
    logits();
  });
  const auto both = bench::timed([&] { torch::autograd::backward({logits().sum()}); });
  suite.compare(model + ", forward", forward,
                {{"eager", python.run(model + ":forward"),
                  is_tiny ? std::optional(0.7) : std::nullopt, !is_tiny}});
  suite.compare(model + ", forward + backward", both,
                {{"eager", python.run(model + ":both"), std::nullopt, true}});
}

void measure_load(bench::Suite& suite, const Scratch& scratch, bench::PythonReference& python,
                  const std::string& model) {
  const std::string path = scratch.file(model);
  suite.compare(model + ", load", bench::timed([&] { load_exported(path); }),
                {{"torch.export.load", python.run(model + ":load"), std::nullopt, true}});
  std::vector<double> seconds;
  for (int i = 0; i < 9; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const Graph graph = load_exported(path);
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::ranges::sort(seconds);
  suite.report({model + ", load, median of 9", seconds[4], "s", 0.5});
}

// Called before anything else has run, so that no released memory can be used again.
void measure_memory(bench::Suite& suite, const Scratch& scratch, const std::string& model) {
  const double before = own_memory();
  const Graph graph = load_exported(scratch.file(model));
  const double loaded = own_memory() - before;
  {
    const c10::NoGradGuard no_grad;
    GraphProgram(graph).run({}, {{"input_ids", at::randint(0, 97, {2, 16}, at::kLong)}});
  }
  const double after = own_memory() - before;
  double weights = 0;
  for (const GraphState& state : graph.parts().states) {
    weights += static_cast<double>(state.tensor.nbytes()) / 1e6;
  }
  suite.report({model + ", weights", weights, "MB"});
  // If the weights were copied, the memory would be that of all weights.
  suite.report({model + ", memory of its own after loading", loaded, "MB", weights / 10});
  suite.report({model + ", the same after a forward", after, "MB"});
}

void measure(bench::Suite& suite) {
  at::set_num_threads(1);
  const Scratch scratch;
  std::vector<std::string> models = {"gpt2_tiny", "llama_tiny"};
  if (!suite.quick()) models.push_back("gpt2_small");
  std::vector<std::string> arguments = {scratch.folder()};
  arguments.insert(arguments.end(), models.begin(), models.end());
  bench::PythonReference python("exported_pytorch.py", arguments);
  python.run("ready")(1);
  measure_memory(suite, scratch, models.back());
  for (const std::string& model : models) {
    compare(suite, scratch, python, model, model != "gpt2_small");
  }
  measure_load(suite, scratch, python, models.back());
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_suite("exported", argc, argv, measure);
}
