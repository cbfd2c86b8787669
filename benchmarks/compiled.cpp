// Compiled stages: a GPT block of width 256 and 768, against the programs in a bare loop, the same
// graph operator by operator, and torch.compile. Also zero-bubble schedules on two ranks.

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>

#include "benchmarks/harness.h"
#include "benchmarks/python_reference.h"
#include "stagecraft/base/check.h"
#include "stagecraft/compiled/compiled_pipe.h"
#include "stagecraft/compiled/compiled_program.h"
#include "stagecraft/runtime/pipeline.h"
#include "stagecraft/schedule/load.h"
#include "stagecraft/sim/simulate.h"

namespace {

using namespace stagecraft;
using Kind = ProgramSlot::Kind;

constexpr int64_t kRows = 2;
constexpr int64_t kLength = 64;
const MicrobatchId kMicrobatch(0);

double taken(const std::function<void()>& work) {
  return 1e6 * bench::timed(work)(1);
}

/// A stage in the middle of a pipeline: its input needs a gradient.
class Subject {
 public:
  Subject(const Pipe& pipe, int64_t width)
      : stage_(pipe.build_stage(StageId(1))),
        x_(at::randn({kRows, kLength, width}).requires_grad_()),
        grad_(at::randn({kRows, kLength, width})) {}

  void whole() {
    stage_.forward(kMicrobatch, {{x_}, {}});
    stage_.backward(kMicrobatch, {grad_});
  }
  void halves() {
    stage_.forward(kMicrobatch, {{x_}, {}});
    stage_.backward_input(kMicrobatch, {grad_});
    stage_.backward_weight(kMicrobatch);
  }

  /// The median times of each action, in microseconds.
  StageCost costs(int rounds) {
    std::vector<double> forward, backward, input, weight;
    for (int i = 0; i < rounds; ++i) {
      forward.push_back(taken([&] { stage_.forward(kMicrobatch, {{x_}, {}}); }));
      backward.push_back(taken([&] { stage_.backward(kMicrobatch, {grad_}); }));
      stage_.forward(kMicrobatch, {{x_}, {}});
      input.push_back(taken([&] { stage_.backward_input(kMicrobatch, {grad_}); }));
      weight.push_back(taken([&] { stage_.backward_weight(kMicrobatch); }));
    }
    return {.forward = bench::summarise(forward).seconds,
            .backward_input = bench::summarise(input).seconds,
            .backward_weight = bench::summarise(weight).seconds,
            .backward = bench::summarise(backward).seconds};
  }

 private:
  Stage stage_;
  at::Tensor x_;
  at::Tensor grad_;
};

/// The programs of the same stage, called one after the other.
class BareLoop {
 public:
  BareLoop(const std::string& path, const CompiledPipe& pipe, int64_t width)
      : package_(path),
        info_(package_.info().stages[1]),
        file_(package_.code(StageId(1))),
        forward_(file_.path(), "forward", c10::kCPU),
        backward_(file_.path(), "backward", c10::kCPU),
        x_(at::randn({kRows, kLength, width})),
        grad_(at::randn({kRows, kLength, width})) {
    const Graph& graph = pipe.stage_graph(StageId(1));
    for (const std::string& name : info_.parameters) {
      parameters_.push_back(graph.find_state(name)->tensor.detach());
    }
    for (const std::string& name : info_.buffers) {
      buffers_.push_back(graph.find_state(name)->tensor);
    }
    if (const ProgramInfo* info = info_.find(ProgramKind::kPrepare)) {
      CompiledProgram prepare(file_.path(), "prepare", c10::kCPU);
      prepared_ = prepare.run(arguments(*info, {}));
    }
  }

  void run() {
    const ProgramInfo& forward = *info_.find(ProgramKind::kForward);
    const ProgramInfo& backward = *info_.find(ProgramKind::kBackward);
    std::vector<at::Tensor> results = forward_.run(arguments(forward, {}));
    std::vector<at::Tensor> saved;
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (forward.outputs[i].kind == Kind::kSaved) saved.push_back(std::move(results[i]));
    }
    results = backward_.run(arguments(backward, std::move(saved)));
    std::vector<at::Tensor> grads;
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (backward.outputs[i].kind == Kind::kParameterGrad) grads.push_back(std::move(results[i]));
    }
    if (sums_.empty()) {
      sums_ = std::move(grads);
    } else {
      at::_foreach_add_(sums_, grads);
    }
  }

 private:
  std::vector<at::Tensor> arguments(const ProgramInfo& info, std::vector<at::Tensor> saved) const {
    std::vector<at::Tensor> result;
    result.reserve(info.inputs.size());
    for (const ProgramSlot& slot : info.inputs) {
      if (slot.kind == Kind::kParameter) result.push_back(parameters_[slot.index]);
      if (slot.kind == Kind::kBuffer) result.push_back(buffers_[slot.index]);
      if (slot.kind == Kind::kInput) result.push_back(x_);
      if (slot.kind == Kind::kPrepared) result.push_back(prepared_[slot.index]);
      if (slot.kind == Kind::kSaved) result.push_back(std::move(saved[slot.index]));
      if (slot.kind == Kind::kOutputGrad) result.push_back(grad_);
    }
    require<Error>(result.size() == info.inputs.size(), "a program takes what the loop lacks");
    return result;
  }

  CompiledPackage package_;
  const CompiledStageInfo& info_;
  ProgramFile file_;
  CompiledProgram forward_;
  CompiledProgram backward_;
  at::Tensor x_;
  at::Tensor grad_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> prepared_;
  std::vector<at::Tensor> sums_;
};

void compare_block(bench::Suite& suite, const std::string& path, int64_t width,
                   bench::PythonReference* python) {
  const CompiledPipe pipe = CompiledPipe::load(path);
  const CompiledPipe other = CompiledPipe::load(path);
  Subject compiled(pipe, width);
  Subject graph(other.with_bodies(nullptr), width);
  BareLoop bare(path, pipe, width);
  const bool is_large = width >= 768;
  std::vector<bench::Reference> references = {
      {"programs in a bare loop", bench::timed([&] { bare.run(); }),
       is_large ? std::optional(1.02) : std::nullopt, !is_large},
      {"libtorch eager", bench::timed([&] { graph.whole(); }), 0.85}};
  if (python != nullptr) {
    references.push_back(
        {"torch.compile", python->run(fmt::format("compile:{}", width)), 1.0, false});
  }
  suite.compare(fmt::format("block of {}, F + B", width), bench::timed([&] { compiled.whole(); }),
                references);
  suite.compare(fmt::format("block of {}, F + I + W", width),
                bench::timed([&] { compiled.halves(); }),
                {{"F + B", bench::timed([&] { compiled.whole(); }), std::nullopt, true}});
}

/// A step of the four blocks on two ranks.
bench::Timed step_of(const Pipe& pipe, const std::string& schedule, int64_t width,
                     int32_t microbatches) {
  auto run = std::make_shared<Pipeline>(
      pipe, PipelineOptions{
                .schedule = schedule,
                .ranks = 2,
                .loss = [](const at::Tensor& y, const at::Tensor& t) { return at::mse_loss(y, t); },
                .seed = 1,
                .threads_per_rank = 1});
  const at::Tensor x = at::randn({kRows * microbatches, kLength, width});
  const at::Tensor target = at::randn({kRows * microbatches, kLength, width});
  return bench::timed([run, x, target, microbatches] {
    run->step({x}, {}, target, {.microbatches = microbatches, .outputs = OutputMode::kNone});
  });
}

void compare_schedules(bench::Suite& suite, const std::string& path, int64_t width) {
  constexpr int32_t kMicrobatches = 4;
  const CompiledPipe pipe = CompiledPipe::load(path);
  for (const char* schedule : {"ZBVZeroBubble", "InterleavedZeroBubble"}) {
    suite.compare(fmt::format("4 blocks of {}, 2 ranks, {}", width, schedule),
                  step_of(pipe, schedule, width, kMicrobatches),
                  {{"Interleaved1F1B", step_of(pipe, "Interleaved1F1B", width, kMicrobatches),
                    std::nullopt, true}});
  }
}

/// The times of F and B of a stage with torch.compile, in microseconds, for PyTorch's 1F1B. PyTorch
/// cannot split the backward of such a stage.
StageCost pytorch_costs(bench::PythonReference& python, int64_t width, int rounds) {
  const bench::Timed forward = python.run(fmt::format("compile_forward:{}", width));
  const bench::Timed both = python.run(fmt::format("compile:{}", width));
  std::vector<double> forward_times, times;
  for (int i = 0; i < rounds; ++i) {
    forward_times.push_back(1e6 * forward(1));
    times.push_back(1e6 * both(1));
  }
  StageCost costs;
  costs.forward = bench::summarise(forward_times).seconds;
  costs.backward = bench::summarise(times).seconds - costs.forward;
  return costs;
}

/// Simulates a step with the measured times of a block. A stage is one block in schedules with two
/// stages a rank, and two blocks in 1F1B.
void simulate_schedules(bench::Suite& suite, const std::string& path, int64_t width,
                        bench::PythonReference& python) {
  constexpr int kRounds = 21;
  const CompiledPipe pipe = CompiledPipe::load(path);
  const StageCost ours = Subject(pipe, width).costs(kRounds);
  StageCost theirs = pytorch_costs(python, width, kRounds);
  theirs.forward *= 2;
  theirs.backward = 2 * *theirs.backward;
  for (const int32_t ranks : {2, 4, 8}) {
    const int32_t microbatches = 2 * ranks;
    const auto makespan = [&](const char* name, const StageCost& cost, int32_t stages_per_rank) {
      CostModel costs;
      costs.stage = cost;
      const ScheduleShape shape{
          .ranks = ranks, .microbatches = microbatches, .stages_per_rank = stages_per_rank};
      return simulate(load_schedule(name, {.shape = shape}), costs).makespan;
    };
    const double reference = makespan("1F1B", theirs, 1);
    for (const char* name : {"ZBVZeroBubble", "InterleavedZeroBubble", "Interleaved1F1B"}) {
      suite.report(
          {fmt::format(
               "simulated, {} blocks of {}, {} ranks, {} microbatches, {}, of PyTorch's 1F1B",
               2 * ranks, width, ranks, microbatches, name),
           makespan(name, ours, 2) / reference, ""});
    }
  }
}

void measure(bench::Suite& suite) {
  at::set_num_threads(1);
  std::vector<int64_t> widths = {256, 768};
  if (suite.quick()) widths = {32};
  const std::string folder = suite.folder() + "/compiled";
  const std::string made =
      fmt::format("\"{}\" \"{}/compiled_pytorch.py\" make \"{}\" \"{}\" {}", SC_BENCH_PYTHON,
                  SC_BENCH_SCRIPTS, folder, SC_BENCH_TOOL, fmt::join(widths, " "));
  require<Error>(std::system(made.c_str()) == 0, "the packages could not be compiled");
  std::unique_ptr<bench::PythonReference> python;
  if (!suite.quick()) {
    std::vector<std::string> arguments = {"serve"};
    for (const int64_t width : widths) arguments.push_back(std::to_string(width));
    python = std::make_unique<bench::PythonReference>("compiled_pytorch.py", arguments);
    for (const int64_t width : widths) python->run(fmt::format("compile:{}", width))(1);
  }
  for (const int64_t width : widths) {
    compare_block(suite, fmt::format("{}/blocks{}.scp", folder, width), width, python.get());
  }
  const std::string first = fmt::format("{}/blocks{}.scp", folder, widths.front());
  compare_schedules(suite, first, widths.front());
  if (python != nullptr) simulate_schedules(suite, first, widths.front(), *python);
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_suite("compiled", argc, argv, measure);
}
