#include "cli/train/model.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <exception>
#include <filesystem>
#include <numeric>
#include <optional>
#include <string_view>
#include <sys/auxv.h>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/Context.h>
#include <ATen/ops/cross_entropy_loss.h>

#include "cli/failure.h"
#include "cli/lowering_options.h"
#include "cli/train/compiled_task.h"
#include "cli/train/exported_task.h"
#include "cli/train/gpt.h"
#include "cli/train/options.h"
#include "stagecraft/base/text_cursor.h"
#include "stagecraft/partition/split_text.h"
#include "stagecraft/plan/unshard_choice.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/load.h"

namespace stagecraft::cli {
namespace {

std::vector<std::string> words_of(std::string_view list) {
  std::vector<std::string> words;
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    words.emplace_back(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return words;
}

/// The first option of lowering that is given; null if there is none.
const std::string* find_pass_option(const TrainCommand& command) {
  const std::vector<std::string>& names = pass_option_names();
  const auto found = std::find_if(names.begin(), names.end(), [&](const std::string& name) {
    return command.given.contains(name);
  });
  return found == names.end() ? nullptr : &*found;
}

/// How the schedule is lowered; nothing without an option for it.
std::optional<LowerOptions> find_lowering(const TrainCommand& command) {
  if (find_pass_option(command) == nullptr) return std::nullopt;
  LowerOptions options = command.lowering;
  if (command.lookahead) {
    options.unshard_lookahead =
        parse_lookahead(*command.lookahead, command.ranks, options.max_active_stages,
                        /*is_measured=*/true);
  }
  return options;
}

/// The schedule of a plan. If the plan says how its stages are gathered, this becomes options of
/// lowering, so that it applies to evaluations, too.
ScheduleSource planned_source(const TrainCommand& command) {
  const SavedPlan& plan = *command.planned;
  LowerOptions options = find_lowering(command).value_or(LowerOptions());
  options.max_active_stages = plan.choice.most_active();
  const bool is_planned = !command.lookahead || command.plan == "auto";
  if (is_planned && command.lookahead != kLeastLookahead) {
    options.unshard_lookahead = plan.lookahead;
  }
  return ScheduleSource::fixed(without_unshards(plan.schedule), options);
}

ScheduleSource make_source(const TrainCommand& command, int32_t stages) {
  if (command.planned && command.planned->problem.sharding.has_gathers()) {
    return planned_source(command);
  }
  const std::optional<LowerOptions> lowering = find_lowering(command);
  if (!command.planned && !is_schedule_file(command.schedule)) {
    return source_for(std::nullopt, command.schedule, command.ranks, stages, lowering);
  }
  const Schedule schedule =
      command.planned ? command.planned->schedule : read_schedule(command.schedule);
  ScheduleSource source = ScheduleSource::fixed(schedule, lowering);
  if (command.lookahead == kLeastLookahead) {
    try {
      source.without_unshard(schedule.num_microbatches());
    } catch (const ArgumentError& error) {
      throw BadUsage(fmt::format("--unshard-lookahead least: {}", error.what()));
    }
  }
  return source;
}

Split make_split(const TrainCommand& command) {
  if (!command.split.empty()) return parse_split(command.split);
  Split split;
  if (!command.plan.empty()) return split;  // the whole model, to find its layers
  int32_t stages = command.stages.value_or(0);
  if (stages == 0) {
    stages = command.ranks * get_schedule_kind(command.schedule).default_stages_per_rank;
  }
  if (stages % command.ranks != 0) {
    throw BadUsage(
        fmt::format("--stages {} cannot be placed evenly on --ranks {}", stages, command.ranks));
  }
  split.policy = command.policy == "parameters"  ? equal_parameters(stages)
                 : command.policy == "operators" ? equal_operators(stages)
                                                 : equal_cost(stages);
  return split;
}

std::vector<int32_t> recomputing_stages(const std::string& text, int32_t stages) {
  std::vector<int32_t> list;
  if (text == "all") {
    list.resize(static_cast<std::size_t>(stages));
    std::iota(list.begin(), list.end(), 0);
    return list;
  }
  for (const std::string& word : words_of(text)) {
    int32_t stage = -1;
    const char* const end = word.data() + word.size();
    const auto [stop, error] = std::from_chars(word.data(), end, stage);
    if (error != std::errc() || stop != end || stage < 0 || stage >= stages) {
      throw BadUsage(fmt::format("--recompute takes all, or stages from 0 to {}, got {}",
                                 stages - 1, quote(word)));
    }
    list.push_back(stage);
  }
  return list;
}

/// On a processor without bfloat16 instructions, torch tries a library that needs them, and prints
/// long warnings before it uses a different one.
void avoid_missing_instructions() {
#if defined(__aarch64__)
  if ((::getauxval(AT_HWCAP2) & HWCAP2_BF16) == 0) at::globalContext().setUserEnabledMkldnn(false);
#endif
}

c10::Device parse_device(const std::string& text) {
  try {
    const c10::Device device(text);
    const bool is_there = device.is_cpu() || (device.is_cuda() && at::globalContext().hasCUDA());
    if (is_there) return device;
  } catch (const std::exception&) {
    throw BadUsage(fmt::format("--device takes cpu, cuda or cuda:N, got {}", quote(text)));
  }
  throw BadUsage(fmt::format(
      "--device {}: this machine has no such device, or this torch does not support it", text));
}

GraphMode graph_mode(const std::string& word) {
  if (word == "on") return GraphMode::kOn;
  return word == "off" ? GraphMode::kOff : GraphMode::kAuto;
}

Task make_gpt_task(const TrainCommand& command, const Split& split, c10::Device device) {
  const Gpt gpt(command.model, static_cast<uint64_t>(command.seed));
  const int64_t parts = command.parts();
  GptUse use{.max_rows = (command.batch + parts - 1) / parts};
  if (command.bf16) use.autocast = at::kBFloat16;
  Task task{.pipe = gpt.cut(split, use),
            .arguments = [](const NamedTensors& rows) -> Arguments {
              return {{rows_named(rows, "ids")}, {}};
            },
            .target = [](const NamedTensors& rows) { return rows_named(rows, "targets"); },
            .loss =
                [](const at::Tensor& logits, const at::Tensor& targets) {
                  return at::cross_entropy_loss(logits.flatten(0, 1).to(at::kFloat),
                                                targets.flatten());
                }};
  task.logits = [](const c10::IValue& output) { return output.toTensor(); };
  task.can_sample = true;
  if (command.model.dropout > 0) {
    use.is_training = false;
    task.evaluation = gpt.cut(split, use);
  }
  if (!device.is_cpu()) {
    std::vector<Pipe> pipes = {task.pipe};
    if (task.evaluation) pipes.push_back(*task.evaluation);
    pipes = Pipe::to(pipes, device);
    task.pipe = pipes.front();
    if (task.evaluation) task.evaluation = pipes.back();
  }
  return task;
}

}  // namespace

void fit_to_schedule(TrainCommand& command) {
  const Schedule schedule = read_schedule(command.schedule);
  const auto must_be = [&](const char* option, int32_t& value, int32_t expected) {
    if (command.given.contains(option) && value != expected) {
      throw BadUsage(fmt::format("{} {} does not fit {}, which has {}", option, value,
                                 command.schedule, expected));
    }
    value = expected;
  };
  must_be("--ranks", command.ranks, schedule.num_ranks());
  must_be("--microbatches", command.microbatches, schedule.num_microbatches());
  int32_t stages = command.stages.value_or(schedule.num_stages());
  must_be("--stages", stages, schedule.num_stages());
  command.stages = stages;
  const std::string* const option = find_pass_option(command);
  if (option != nullptr && schedule.level() == Level::kLowered) {
    throw BadUsage(fmt::format("{} does not fit {}, which is lowered already: it has transfers",
                               *option, command.schedule));
  }
  command.given["--schedule"] = {std::filesystem::absolute(command.schedule).string()};
  check_train_command(command);
}

Task make_task(TrainCommand& command, const TrainingData& data) {
  // get_schedule_kind throws, with the names of all schedules, for an unknown name.
  if (!command.planned && !is_schedule_file(command.schedule)) get_schedule_kind(command.schedule);
  find_lowering(command);  // throws for a lookahead that does not fit
  const c10::Device device = parse_device(command.device);
  const Split split = is_package(command) ? Split() : make_split(command);
  if (command.bf16) avoid_missing_instructions();
  const auto planned = [&](Task task) {
    if (command.planned) {
      try {
        require_plan_for(*command.planned, command.ranks, graph_of(task.pipe));
      } catch (const ArgumentError& error) {
        throw BadUsage(fmt::format("--plan {}: {}", command.plan, error.what()));
      }
    }
    return task;
  };
  if (command.model_file.empty()) return planned(make_gpt_task(command, split, device));
  command.model_file = std::filesystem::absolute(command.model_file).string();
  command.given["--model"] = {command.model_file};
  std::error_code ignored;
  if (std::filesystem::equivalent(command.model_file, command.save_weights, ignored)) {
    throw BadUsage(fmt::format("--save-weights {} would replace the model", command.save_weights));
  }
  if (is_package(command)) return planned(make_compiled_task(command, data, device));
  return planned(make_exported_task(command, data, split, device));
}

std::string graph_of(const Pipe& pipe) {
  // The text has the operators in their order, because a plan's split points depend on them. Sizes
  // and weights may differ.
  std::string text;
  for (const GraphNode& node : pipe.graph().parts().nodes) {
    text += fmt::format("{} {}.{}\n", node.name, node.op.name, node.op.overload_name);
  }
  return graph_checksum(text);
}

Trainer make_trainer(const TrainCommand& command, const Task& task, Transport* transport) {
  TrainerOptions options{.schedule = command.schedule,
                         .ranks = command.ranks,
                         .source = make_source(command, task.pipe.num_stages()),
                         .timeout = std::chrono::duration_cast<std::chrono::nanoseconds>(
                             std::chrono::duration<double>(command.timeout)),
                         .seed = static_cast<uint64_t>(command.seed),
                         .threads_per_rank = command.threads,
                         .graphs = graph_mode(command.graphs),
                         .microbatches = command.microbatches,
                         .accumulate = command.accumulate,
                         .learning_rate = command.learning_rate,
                         .clip = command.clip,
                         .recompute = recomputing_stages(command.recompute, task.pipe.num_stages()),
                         .evaluation = task.evaluation,
                         .transport = transport,
                         .replicas = command.replicas,
                         .shard = find_shard_kind(command.shard).value(),
                         .shard_units = words_of(command.shard_units)};
  options.adamw.weight_decay = command.weight_decay;
  options.adamw.master_weights = command.master_weights;
  return Trainer(task.pipe, task.loss, std::move(options));
}

}  // namespace stagecraft::cli
