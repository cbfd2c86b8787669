// Steps of a package of compiled stages on a CUDA device beside its programs in a bare loop, for
// benchmarks/gpu.py:
//
//   gpu_compiled PACKAGE MICROBATCHES ROWS LENGTH ROUNDS [cpu]
//
// The model takes ids and targets [ROWS, LENGTH] and returns its loss. The loop calls forward and
// backward of each stage, microbatch by microbatch, and adds gradients, as a step does. No
// optimizer. All columns are measured in turns.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "stagecraft/base/check.h"
#include "stagecraft/compiled/compiled_pipe.h"
#include "stagecraft/compiled/compiled_program.h"
#include "stagecraft/runtime/pipeline.h"

namespace {

using namespace stagecraft;
using Kind = ProgramSlot::Kind;
using Tensors = std::vector<at::Tensor>;

/// The programs of one stage.
class BareStage {
 public:
  BareStage(const CompiledPackage& package, const CompiledPipe& pipe, StageId stage,
            c10::Device device)
      : info_(package.info().stages[stage.position()]),
        sources_(pipe.plan().stages[stage.position()].sources),
        file_(package.code(stage)),
        forward_(file_.path(), "forward", device),
        backward_(file_.path(), "backward", device) {
    const Graph& graph = pipe.stage_graph(stage);
    for (const std::string& name : info_.parameters) {
      parameters_.push_back(graph.find_state(name)->tensor.detach());
    }
    for (const std::string& name : info_.buffers) {
      buffers_.push_back(graph.find_state(name)->tensor);
    }
    if (info_.find(ProgramKind::kPrepare) != nullptr) {
      prepare_ = std::make_unique<CompiledProgram>(file_.path(), "prepare", device);
    }
  }

  /// What depends on parameters alone: once a step.
  void prepare() {
    if (prepare_ != nullptr) {
      prepared_ = prepare_->run(arguments(*info_.find(ProgramKind::kPrepare), {}, {}, {}));
    }
  }

  /// `made`: the outputs of earlier stages.
  Tensors forward(const Tensors& given, const std::vector<Tensors>& made) {
    inputs_.clear();
    for (const StageSource& source : sources_) {
      if (const auto* from = std::get_if<FromArgument>(&source)) {
        inputs_.push_back(given.at(static_cast<std::size_t>(from->argument)));
      } else {
        const auto& port = std::get<OutputPort>(source);
        inputs_.push_back(made.at(port.stage.position()).at(static_cast<std::size_t>(port.output)));
      }
    }
    const ProgramInfo& info = *info_.find(ProgramKind::kForward);
    Tensors results = forward_.run(arguments(info, inputs_, {}, {}));
    Tensors outputs(info_.outputs.size());
    saved_.clear();
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (info.outputs[i].kind == Kind::kSaved) saved_.push_back(std::move(results[i]));
      if (info.outputs[i].kind == Kind::kOutput) {
        outputs[info.outputs[i].index] = std::move(results[i]);
      }
    }
    return outputs;
  }

  /// Adds the gradients of parameters and returns those of the stage's first input.
  at::Tensor backward(const at::Tensor& grad) {
    const ProgramInfo& info = *info_.find(ProgramKind::kBackward);
    Tensors results = backward_.run(arguments(info, inputs_, std::exchange(saved_, {}), grad));
    at::Tensor of_input;
    Tensors grads;
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (info.outputs[i].kind == Kind::kParameterGrad) grads.push_back(std::move(results[i]));
      if (info.outputs[i].kind == Kind::kInputGrad) of_input = std::move(results[i]);
    }
    if (sums_.empty()) {
      sums_ = std::move(grads);
    } else {
      at::_foreach_add_(sums_, grads);
    }
    return of_input;
  }

  void clear() { sums_.clear(); }

 private:
  Tensors arguments(const ProgramInfo& info, const Tensors& inputs, Tensors saved,
                    const at::Tensor& grad) const {
    Tensors result;
    result.reserve(info.inputs.size());
    for (const ProgramSlot& slot : info.inputs) {
      if (slot.kind == Kind::kParameter) result.push_back(parameters_[slot.index]);
      if (slot.kind == Kind::kBuffer) result.push_back(buffers_[slot.index]);
      if (slot.kind == Kind::kInput) result.push_back(inputs[slot.index]);
      if (slot.kind == Kind::kPrepared) result.push_back(prepared_[slot.index]);
      if (slot.kind == Kind::kSaved) result.push_back(std::move(saved[slot.index]));
      if (slot.kind == Kind::kOutputGrad) result.push_back(grad);
    }
    require<Error>(result.size() == info.inputs.size(),
                   "a program reads what the bare loop does not have: sizes or seeds");
    return result;
  }

  const CompiledStageInfo& info_;
  const std::vector<StageSource>& sources_;
  ProgramFile file_;
  CompiledProgram forward_;
  CompiledProgram backward_;
  std::unique_ptr<CompiledProgram> prepare_;
  Tensors parameters_, buffers_, prepared_, inputs_, saved_, sums_;
};

/// One after the other, for all microbatches.
class BareLoop {
 public:
  BareLoop(const std::string& path, const CompiledPipe& pipe, c10::Device device) : package_(path) {
    for (int32_t s = 0; s < pipe.num_stages(); ++s) {
      stages_.push_back(std::make_unique<BareStage>(package_, pipe, StageId(s), device));
    }
  }

  void run(const Tensors& given, int64_t microbatches) {
    const at::NoGradGuard no_grad;
    for (auto& stage : stages_) {
      stage->clear();
      stage->prepare();
    }
    std::vector<Tensors> parts;
    for (const at::Tensor& whole : given) parts.push_back(whole.chunk(microbatches));
    for (std::size_t m = 0; m < parts[0].size(); ++m) {
      Tensors part;
      part.reserve(parts.size());
      for (const Tensors& each : parts) part.push_back(each[m]);
      std::vector<Tensors> made;
      for (auto& stage : stages_) made.push_back(stage->forward(part, made));
      const at::Tensor& loss = made.back().front();
      at::Tensor grad = at::full({}, 1.0 / static_cast<double>(microbatches), loss.options());
      for (auto stage = stages_.rbegin(); stage != stages_.rend(); ++stage) {
        grad = (*stage)->backward(grad);
      }
    }
  }

 private:
  CompiledPackage package_;
  std::vector<std::unique_ptr<BareStage>> stages_;
};

std::unique_ptr<Pipeline> pipeline_of(const CompiledPipe& pipe, GraphMode graphs) {
  PipelineOptions options{.schedule = pipe.num_stages() == 1 ? "1F1B" : "Interleaved1F1B",
                          .ranks = 1};
  options.graphs = graphs;
  options.seed = 1;
  options.loss =
      Loss([](const c10::IValue& output, const c10::IValue&, const Kwargs&) { return output; });
  return std::make_unique<Pipeline>(pipe, options);
}

double median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

int measure(const std::string& path, int32_t microbatches, int64_t rows, int64_t length, int rounds,
            c10::Device device) {
  const CompiledPipe pipe = CompiledPipe::load(path);
  BareLoop bare(path, pipe, device);
  const auto options = at::TensorOptions(device).dtype(at::kLong);
  const Tensors given = {at::randint(17, {rows * microbatches, length}, options),
                         at::randint(17, {rows * microbatches, length}, options)};
  const std::unique_ptr<Pipeline> run = pipeline_of(pipe, GraphMode::kOff);
  const std::unique_ptr<Pipeline> replayed =
      device.is_cuda() ? pipeline_of(pipe, GraphMode::kOn) : nullptr;
  const auto step = [&](Pipeline& pipeline) {
    pipeline.step({given[0], given[1]}, {}, {},
                  {.microbatches = microbatches, .outputs = OutputMode::kNone});
    for (const at::Tensor& parameter : pipe.parameters()) parameter.mutable_grad() = at::Tensor();
  };
  const auto finish = [&] {
    if (!device.is_cuda()) return;
    const c10::impl::VirtualGuardImpl impl(device.type());
    impl.synchronizeStream(impl.getStream(device));
  };
  std::vector<std::pair<std::string, std::function<void()>>> columns = {
      {"programs in a bare loop", [&] { bare.run(given, microbatches); }},
      {"a step, one rank", [&] { step(*run); }}};
  if (replayed != nullptr) columns.emplace_back("a step, replayed", [&] { step(*replayed); });
  std::vector<std::vector<double>> times(columns.size());
  for (int round = -4; round < rounds; ++round) {
    for (std::size_t c = 0; c < columns.size(); ++c) {
      finish();
      const auto begin = std::chrono::steady_clock::now();
      columns[c].second();
      finish();
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
      if (round >= 0) times[c].push_back(taken.count());
    }
  }
  for (std::size_t c = 0; c < columns.size(); ++c) {
    std::printf("  %-28s %9.3f ms  %5.3f of the bare loop\n", columns[c].first.c_str(),
                1e3 * median(times[c]), median(times[c]) / median(times[0]));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) {
    std::fprintf(stderr, "usage: gpu_compiled PACKAGE MICROBATCHES ROWS LENGTH ROUNDS [cpu]\n");
    return 2;
  }
  const bool is_cpu = argc > 6 && std::string(argv[6]) == "cpu";
  try {
    return measure(argv[1], std::atoi(argv[2]), std::atoll(argv[3]), std::atoll(argv[4]),
                   std::atoi(argv[5]),
                   is_cpu ? c10::Device(c10::kCPU) : c10::Device(c10::kCUDA, 0));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_compiled: %s\n", error.what());
    return 1;
  }
}
