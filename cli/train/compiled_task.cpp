#include "cli/train/compiled_task.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/failure.h"
#include "cli/train/exported_task.h"
#include "cli/train/options.h"
#include "stagecraft/compiled/compiled_pipe.h"
#include "stagecraft/graph/passes/evaluation.h"
#include "stagecraft/schedule/builders/builders.h"

namespace stagecraft::cli {
namespace {

[[noreturn]] void refuse_package(const TrainCommand& command, const std::string& why) {
  throw BadUsage(fmt::format("--model {}: {}", command.model_file, why));
}

/// BadUsage, with ranks and schedules that fit, unless the named schedule takes the stages.
void check_schedule(const TrainCommand& command, int32_t stages) {
  const auto fits = [&](const ScheduleKind& kind, int32_t ranks) {
    return stages % ranks == 0 && kind.stages_per_rank.contains(stages / ranks);
  };
  const ScheduleKind& chosen = get_schedule_kind(command.schedule);
  if (fits(chosen, command.ranks)) return;
  std::vector<int32_t> ranks;
  for (int32_t each = 1; each <= stages; ++each) {
    if (fits(chosen, each)) ranks.push_back(each);
  }
  std::vector<std::string_view> schedules;
  for (const ScheduleKind& kind : schedule_kinds()) {
    if (kind.has_backward && fits(kind, command.ranks)) schedules.push_back(kind.name);
  }
  std::vector<std::string> fixes;
  if (!ranks.empty()) fixes.push_back(fmt::format("--ranks {}", fmt::join(ranks, ", ")));
  if (!schedules.empty()) {
    fixes.push_back(fmt::format("--schedule {}", fmt::join(schedules, ", ")));
  }
  // One stage a rank always fits.
  if (fixes.empty()) fixes.push_back(fmt::format("--ranks {} --schedule 1F1B", stages));
  refuse_package(
      command,
      fmt::format(
          "the package has {} stages, which do not fit --ranks {} with --schedule {}; pass {}",
          stages, command.ranks, chosen.name, fmt::join(fixes, " or ")));
}

void check_options(const TrainCommand& command, const CompiledPipe& pipe) {
  const auto refuse = [&](const std::string& why) { refuse_package(command, why); };
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
  if (!command.planned && !is_schedule_file(command.schedule)) {
    check_schedule(command, pipe.num_stages());
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
