#include "cli/train/compiled_task.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include "cli/failure.h"
#include "cli/train/exported_task.h"
#include "stagecraft/compiled/compiled_pipe.h"
#include "stagecraft/graph/passes/evaluation.h"

namespace stagecraft::cli {
namespace {

void check_options(const TrainCommand& command, const CompiledPipe& pipe) {
  const auto refuse = [&](const std::string& why) {
    throw BadUsage(fmt::format("--model {}: {}", command.model_file, why));
  };
  for (const char* option : {"--split", "--policy", "--program"}) {
    if (command.given.contains(option)) {
      refuse(fmt::format("{} does not fit: the stages of the package are compiled", option));
    }
  }
  if (command.plan == "auto") {
    refuse("--plan auto does not fit: the stages of the package are compiled; plan before that");
  }
  if (command.stages && *command.stages != pipe.num_stages()) {
    refuse(fmt::format("--stages {} does not fit the package, which has {} stages", *command.stages,
                       pipe.num_stages()));
  }
  if (command.bf16 && pipe.package().autocast != "bfloat16") {
    refuse("--bf16 does not fit: the stages were compiled without it (stagecraft compile --bf16)");
  }
  if (pipe.num_stages() % command.ranks != 0) {
    refuse(fmt::format("its {} stages cannot be placed evenly on --ranks {}", pipe.num_stages(),
                       command.ranks));
  }
}

/// The graph of the model with the sizes that the stages were compiled for.
Graph with_compiled_sizes(const CompiledPipe& pipe) {
  GraphParts parts = pipe.graph().parts();
  for (GraphSize& size : parts.sizes) {
    for (const FixedSize& fixed : pipe.package().fixed) {
      if (fixed.name == size.name) size.least = size.greatest = size.example = fixed.value;
    }
    for (const CompiledSize& range : pipe.package().sizes) {
      if (range.name != size.name) continue;
      size.least = std::max(size.least, range.least);
      size.greatest = std::min(size.greatest, range.greatest);
    }
  }
  return Graph(std::move(parts));
}

/// The model without dropout, on the same weights. It is not compiled.
Pipe evaluation_of(const Pipe& pipe) {
  PipePlan plan = pipe.plan();
  for (StagePlan& stage : plan.stages) stage.graph = for_evaluation(stage.graph);
  return Pipe::of_plan(for_evaluation(pipe.graph()), std::move(plan));
}

}  // namespace

bool is_package(const TrainCommand& command) {
  return command.model_file.ends_with(".scp");
}

Task make_compiled_task(TrainCommand& command, const TrainingData& data, c10::Device device) {
  const CompiledPipe pipe = CompiledPipe::load(command.model_file, {.device = device});
  check_options(command, pipe);
  Task task{.pipe = pipe, .arguments = {}, .target = {}, .loss = {}};
  const bool draws = std::ranges::any_of(
      pipe.package().stages, [](const CompiledStageInfo& stage) { return !stage.draws.empty(); });
  const bool updates = std::ranges::any_of(pipe.package().stages, [](const auto& stage) {
    return std::ranges::any_of(
        stage.find(ProgramKind::kForward)->outputs,
        [](const ProgramSlot& slot) { return slot.kind == ProgramSlot::Kind::kBufferUpdate; });
  });
  if (draws || updates) task.evaluation = evaluation_of(pipe);
  describe_exported_task(command, data, with_compiled_sizes(pipe), task);
  return task;
}

}  // namespace stagecraft::cli
