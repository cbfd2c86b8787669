#include "cli/train/options.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "cli/failure.h"
#include "cli/lowering_options.h"
#include "cli/option_kinds.h"
#include "cli/plan_search.h"
#include "stagecraft/base/text_cursor.h"
#include "stagecraft/transport/world/back_ends.h"

namespace stagecraft::cli {
namespace {

/// Options that belong to one call of the program. A resumed run does not take them from the
/// checkpoint.
constexpr std::array<std::string_view, 13> kOfThisCall = {
    "--resume", "--quiet",     "--json",         "--report",    "--report-json",
    "--trace",  "--help",      "--save-weights", "--transport", "--plan-out",
    "--graphs", "--processes", "--restarts"};

CLI::Option* add_list(CLI::App* app, const std::string& name, std::vector<std::string>& target,
                      const std::string& type, const std::string& what) {
  return app->add_option(name, target, what)->type_name(type)->expected(1, 1 << 20);
}

void add_model(CLI::App* app, TrainCommand& command, std::string& positions, bool& untied) {
  GptSizes& sizes = command.model;
  std::vector<CLI::Option*> options = {
      add_count(app, "--layers", sizes.layers, 1, "N", "blocks; default: 4"),
      add_count(app, "--width", sizes.width, 1, "N", "default: 128"),
      add_count(app, "--heads", sizes.heads, 1, "N", "of attention; default: 4"),
      add_count(app, "--context", sizes.context, 4, "N", "bytes in a row; default: 64"),
      add_choice(app, "--positions", positions, {"rotary", "learned"}, "default: rotary"),
      app->add_flag("--untied", untied, "the head has a weight of its own, not the embedding's"),
      add_number(app, "--dropout", sizes.dropout, 0, 0.99, "P", "default: 0"),
  };
  CLI::Option* file =
      add_text(app, "--model", command.model_file, "FILE",
               "an archive of torch.export (.pt2), or a package of compiled stages (.scp), "
               "instead of the built-in GPT");
  for (CLI::Option* option : options) {
    option->group("Model");
    if (option->get_name() != "--context") file->excludes(option);
  }
  file->group("Model");
  add_text(app, "--program", command.program, "NAME", "of an archive with several")
      ->needs(file)
      ->group("Model");
}

void add_data(CLI::App* app, TrainCommand& command) {
  add_list(app, "--data", command.data, "FILE...",
           "texts to train on; default: the first chapters of Pride and Prejudice. With --model "
           "also a file of examples, torch.save({name: tensor})")
      ->group("Data");
  add_number(app, "--held-out", command.held_out, 0, 0.9, "SHARE",
             "share of the text, at its end, for evaluation; default: 0.1")
      ->group("Data");
}

void add_pipeline(CLI::App* app, TrainCommand& command) {
  CLI::Option* split =
      add_text(app, "--split", command.split, "NAME,...",
               "split before these modules, or after them with NAME:end: blocks.1,head");
  CLI::Option* stages = add_count(app, "--stages", command.stages, 1, "N",
                                  "default: as many as the ranks have under the schedule");
  CLI::Option* policy =
      add_choice(app, "--policy", command.policy, {"cost", "parameters", "operators"},
                 "what is divided evenly among stages; default: cost");
  split->excludes(stages)->excludes(policy);
  CLI::Option* processes = add_count(
      app, "--processes", command.processes, 1, "N",
      "start that number of processes on this machine, one for each rank, and watch them");
  std::vector<CLI::Option*> options = {
      add_count(app, "--ranks", command.ranks, 1, "P",
                "each a thread; default: 2, or the processes that torchrun, mpirun or srun has "
                "started"),
      add_count(app, "--replicas", command.replicas, 1, "R",
                "pipelines of P ranks side by side, each with a share of every batch; default: 1"),
      add_choice(app, "--shard", command.shard, {"none", "optimizer", "gradients", "parameters"},
                 "what replicas divide among themselves, each with those before it; default: none"),
      add_text(app, "--shard-units", command.shard_units, "NAME,...",
               "modules whose parameters are sharded separately from their stage's: blocks.1"),
      add_choice(app, "--transport", command.transport, detail::transport_words(),
                 "transport between ranks; local: threads; default: as the ranks were started"),
      add_text(app, "--schedule", command.schedule, "NAME|FILE",
               "name of a schedule, or a CSV or JSON file; default: 1F1B"),
      stages,
      split,
      policy,
      add_text(app, "--recompute", command.recompute, "all|S,...",
               "stages that run forward again instead of keeping activations"),
      add_count(app, "--threads", command.threads, 1, "N",
                "threads of each rank inside operators; default: 1"),
      add_text(app, "--device", command.device, "NAME", "cpu, cuda, cuda:1, ...; default: cpu"),
      add_choice(app, "--graphs", command.graphs, {"auto", "on", "off"},
                 "replay steps as CUDA graphs; auto: where that is possible; default: auto"),
      processes,
      add_count(app, "--restarts", command.restarts, 0, "N",
                "how often to start all processes again after one has died, from the newest "
                "checkpoint; default: 0")
          ->needs(processes),
      add_number(app, "--timeout", command.timeout, 1e-6, 1e6, "SECONDS",
                 "how long ranks wait for each other; default: 60"),
  };
  for (CLI::Option* option : add_pass_options(app, command.lowering, command.lookahead)) {
    options.push_back(option);
  }
  app->get_option("--unshard-lookahead")
      ->type_name("full|auto|least|N,...")
      ->description(
          "stages to unshard ahead: all that may be, fewer on early ranks, as few as cost "
          "no time by the times of the first steps, or by rank");
  for (CLI::Option* option : options) option->group("Pipeline");
}

void add_plan(CLI::App* app, TrainCommand& command) {
  CLI::Option* plan = add_text(app, "--plan", command.plan, "auto|FILE",
                               "split, schedule and recompute of a plan; auto: measure and plan");
  for (const char* other : {"--schedule", "--stages", "--split", "--policy", "--recompute"}) {
    plan->excludes(app->get_option(other));
  }
  std::vector<CLI::Option*> options = {
      add_text(app, "--memory", command.memory, "BYTES",
               "memory that each rank may use: 8GB or 8GB,6GB; default: unlimited"),
      add_count(app, "--plan-steps", command.plan_steps, 1, "N", "steps to measure; default: 7"),
      add_text(app, "--plan-time", command.plan_time, "TIME",
               "time of the search for a plan; default: 5s"),
      add_text(app, "--plan-out", command.plan_out, "FILE", "file for the plan"),
  };
  for (CLI::Option* option : options) option->needs(plan)->group("Plan");
  plan->group("Plan");
}

void add_training(CLI::App* app, TrainCommand& command) {
  LearningRate& rate = command.learning_rate;
  std::vector<CLI::Option*> options = {
      add_count(app, "--steps", command.steps, 1, "N", "updates in all; default: 400"),
      add_count(app, "--batch", command.batch, 1, "N", "rows for each update; default: 16"),
      add_count(app, "--microbatches", command.microbatches, 1, "M", "default: 8"),
      add_count(app, "--accumulate", command.accumulate, 1, "K",
                "steps of the pipeline, with M microbatches each (and replica), for one update; "
                "default: 1"),
      add_number(app, "--lr", rate.peak, 0, 1e3, "RATE", "at its peak; default: 0.003"),
      add_number(app, "--min-lr", rate.least, 0, 1e3, "RATE",
                 "at the end of the cosine; default: a tenth of the peak"),
      add_count(app, "--warmup", rate.warmup, 0, "N", "steps; default: 20"),
      add_number(app, "--weight-decay", command.weight_decay, 0, 1e3, "X",
                 "of weights with two dimensions; default: 0.1"),
      add_number(app, "--clip", command.clip, 0, 1e9, "NORM",
                 "of all gradients together; 0: no clipping; default: 1"),
      app->add_flag("--bf16", command.bf16, "compute in bfloat16 where that is safe (autocast)"),
      app->add_flag("--master-weights", command.master_weights,
                    "update float32 copies of weights of half types (of --model)"),
      add_count(app, "--seed", command.seed, 0, "N", "default: 1"),
  };
  for (CLI::Option* option : options) option->group("Training");
}

void add_looking(CLI::App* app, TrainCommand& command) {
  std::vector<CLI::Option*> options = {
      add_count(app, "--eval-every", command.eval_every, 0, "N", "steps; 0: never; default: 100"),
      add_count(app, "--eval-batches", command.eval_batches, 1, "N", "default: 4"),
      add_count(app, "--sample", command.sample, 0, "N", "bytes of text at the end; default: 200"),
      add_text(app, "--prompt", command.prompt, "TEXT", "text that the sample continues"),
      add_number(app, "--temperature", command.temperature, 0.01, 100, "T", "default: 0.8"),
  };
  for (CLI::Option* option : options) option->group("Evaluation and sample");
}

void add_files(CLI::App* app, TrainCommand& command, std::string& save_every) {
  std::vector<CLI::Option*> options = {
      add_text(app, "--checkpoint", command.checkpoint, "FOLDER", "save there"),
      add_text(app, "--save-every", save_every, "N|TIME",
               "steps, or a time: 30s, 500ms; default: 100"),
      add_count(app, "--keep", command.keep, 0, "N", "checkpoints; 0: all; default: 2"),
      add_text(app, "--resume", command.resume, "FOLDER|auto",
               "continue from the newest checkpoint there, or from that one, with the options of "
               "then; options given now count. auto: from the newest one of --checkpoint that can "
               "be read, or from the beginning if there is none"),
      add_text(app, "--save-weights", command.save_weights, "FILE",
               "at the end, as a state dict that Python's torch.load reads"),
      add_text(app, "--report", command.report, "FILE", "an HTML page of the run"),
      add_text(app, "--report-json", command.report_json, "FILE", "its numbers as JSON"),
      add_text(app, "--trace", command.trace, "FILE", "the last step, for ui.perfetto.dev"),
  };
  for (CLI::Option* option : options) option->group("Files");
  CLI::Option* quiet = app->add_flag("--quiet", command.is_quiet, "say nothing but errors");
  app->add_flag("--json", command.is_json, "a line of JSON a step")->excludes(quiet);
}

std::map<std::string, std::vector<std::string>> given_options(const CLI::App& app) {
  std::map<std::string, std::vector<std::string>> given;
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_name();
    if (option->count() == 0) continue;
    if (std::find(kOfThisCall.begin(), kOfThisCall.end(), name) != kOfThisCall.end()) continue;
    given[name] = option->results();
  }
  return given;
}

}  // namespace

bool is_schedule_file(const std::string& schedule) {
  return schedule.find_first_of("./") != std::string::npos;
}

void check_train_command(const TrainCommand& command) {
  if (command.batch < command.parts()) {
    throw BadUsage(fmt::format("--batch {} has fewer rows than there are microbatches: {} x {}{}",
                               command.batch, command.microbatches, command.accumulate,
                               command.replicas > 1 ? fmt::format(" x {}", command.replicas) : ""));
  }
  const bool may_know = !command.plan.empty() && command.plan != "auto" && !command.planned;
  if (command.shard != "none" && command.replicas == 1 && !may_know) {
    throw BadUsage(
        fmt::format("--shard {} divides among replicas: pass --replicas, too", command.shard));
  }
  if (!command.shard_units.empty() && command.shard == "none") {
    throw BadUsage("--shard-units says how --shard divides: pass --shard, too");
  }
  if (command.lookahead == kLeastLookahead && command.shard != "parameters") {
    throw BadUsage(
        "--unshard-lookahead least is found from the times of gathers: pass --shard parameters, "
        "too");
  }
  if (command.learning_rate.warmup > command.steps) {
    throw BadUsage(fmt::format("--warmup {} is longer than --steps {}",
                               command.learning_rate.warmup, command.steps));
  }
  if (command.learning_rate.least > command.learning_rate.peak) {
    throw BadUsage(fmt::format("--min-lr {} is above --lr {}", command.learning_rate.least,
                               command.learning_rate.peak));
  }
}

namespace {

void complete(TrainCommand& command, const std::string& positions, bool untied) {
  if (!positions.empty()) {
    command.model.positions = positions == "rotary" ? Positions::kRotary : Positions::kLearned;
  }
  command.model.is_tied = !untied;
  command.learning_rate.steps = command.steps;
  if (!command.given.contains("--min-lr")) {
    command.learning_rate.least = command.learning_rate.peak / 10;
  }
  if (!command.given.contains("--warmup")) {
    command.learning_rate.warmup = std::min<int64_t>(command.learning_rate.warmup, command.steps);
  }
}

/// A number of steps, or a time with its unit.
void read_save_every(const std::string& text, TrainCommand& command) {
  if (text.empty()) return;
  const bool is_time = text.find_first_not_of("0123456789") != std::string::npos;
  if (is_time) {
    command.save_time = parse_time_limit("--save-every", text);
  } else {
    command.save_every = static_cast<int32_t>(parse_count("--save-every", text, 1, kMostCount));
  }
}

void check_processes(const TrainCommand& command) {
  if (command.restarts > 0 && command.checkpoint.empty()) {
    throw BadUsage("--restarts continues from checkpoints: pass --checkpoint FOLDER, too");
  }
  if (command.processes > 0 && command.transport == "local") {
    throw BadUsage("--processes starts processes, but --transport local is for threads of one");
  }
  if (command.processes > 0 && command.processes % command.replicas != 0) {
    throw BadUsage(fmt::format("--replicas {} does not divide --processes {}", command.replicas,
                               command.processes));
  }
}

constexpr std::string_view kExamples =
    R"(Exit status: 0 done, 1 training failed, 2 bad usage (or a file that cannot be read or written),
3 done but the last checkpoint could not be written, 130 after Ctrl-C.

Examples:
  stagecraft train --ranks 4 --report report.html
  stagecraft train --data book.txt --layers 8 --width 256 --schedule ZBVZeroBubble --ranks 4
  stagecraft train --checkpoint run --steps 2000
  stagecraft train --resume run --ranks 2
  stagecraft train --processes 4 --restarts 5 --checkpoint run --resume auto --save-every 30s
  stagecraft train --ranks 2 --plan auto --memory 1GB --plan-out gpt.plan
  torchrun --no-python --nproc-per-node 4 stagecraft train --replicas 2 --shard parameters
  stagecraft train --model llama.pt2 --split model.layers.2 --save-weights trained.pt)";

}  // namespace

std::variant<TrainCommand, std::string> parse_train_options(const std::vector<std::string>& words) {
  TrainCommand command;
  std::string positions;
  bool untied = false;
  std::string save_every;
  CLI::App app("Train a byte-level GPT, or an exported model, through a pipeline.",
               "stagecraft train");
  set_up_help(app, kExamples);
  add_data(&app, command);
  add_model(&app, command, positions, untied);
  add_pipeline(&app, command);
  add_plan(&app, command);
  add_training(&app, command);
  add_looking(&app, command);
  add_files(&app, command, save_every);
  try {
    if (auto text = parse_words(app, words)) return std::move(*text);
    command.given = given_options(app);
    command.command_line = "stagecraft train";
    for (const std::string& word : words) {
      command.command_line +=
          ' ' + (word.find_first_of(" \t\n'\"") == std::string::npos ? word : quote(word));
    }
    complete(command, positions, untied);
    read_save_every(save_every, command);
    check_processes(command);
    if (command.resume.empty() || command.resume == "auto") check_train_command(command);
  } catch (const BadUsage& error) {
    throw BadUsage(fmt::format("{} (see stagecraft train --help)", error.what()));
  }
  return command;
}

TrainCommand take_up(const TrainCommand& now,
                     const std::map<std::string, std::vector<std::string>>& then) {
  std::map<std::string, std::vector<std::string>> options = then;
  // A new split of the model replaces all options of the old split.
  if (now.given.contains("--split")) {
    options.erase("--stages");
    options.erase("--policy");
  }
  if (now.given.contains("--stages") || now.given.contains("--policy")) options.erase("--split");
  // A new plan replaces the options of the old split, and a new split replaces a plan.
  if (now.given.contains("--plan")) {
    for (const char* name : {"--schedule", "--stages", "--split", "--policy", "--recompute"}) {
      options.erase(name);
    }
  }
  for (const char* name : {"--schedule", "--stages", "--split", "--policy", "--recompute"}) {
    if (!now.given.contains(name)) continue;
    for (const char* of_plan : {"--plan", "--memory", "--plan-steps", "--plan-time"}) {
      options.erase(of_plan);
    }
  }
  if (now.given.contains("--ranks") || now.given.contains("--schedule")) {
    for (const char* name : {"--stages", "--split"}) options.erase(name);
    if (now.given.contains("--schedule") && is_schedule_file(now.schedule)) {
      // A schedule file may be lowered already, and then takes no options of lowering.
      for (const std::string& name : pass_option_names()) options.erase(name);
      options.erase("--ranks");
    }
    const auto lookahead = options.find("--unshard-lookahead");
    const std::vector<std::string> word =
        lookahead == options.end() ? std::vector<std::string>() : lookahead->second;
    if (word != std::vector<std::string>{"full"} && word != std::vector<std::string>{"auto"} &&
        word != std::vector<std::string>{kLeastLookahead}) {
      options.erase("--unshard-lookahead");  // a number for each rank of then
    }
    const auto recompute = options.find("--recompute");
    if (recompute != options.end() && recompute->second != std::vector<std::string>{"all"}) {
      options.erase(recompute);
    }
  }
  if (now.given.contains("--replicas") && now.replicas == 1) {
    options.erase("--shard");
    options.erase("--shard-units");
  }
  // A lookahead from times of gathers needs weights that are gathered.
  const auto shard = options.find("--shard");
  const bool gathers = now.given.contains("--shard")
                           ? now.shard == "parameters"
                           : shard != options.end() && shard->second.front() == "parameters";
  const auto ahead = options.find("--unshard-lookahead");
  if (!gathers && ahead != options.end() && ahead->second.front() == kLeastLookahead) {
    options.erase(ahead);
  }
  for (const auto& [name, values] : now.given) options[name] = values;
  std::vector<std::string> words;
  for (const auto& [name, values] : options) {
    if (values.size() == 1 && !values.front().empty()) {
      words.push_back(name + "=" + values.front());  // a value may begin with a dash
    } else {
      words.push_back(name);
      words.insert(words.end(), values.begin(), values.end());
    }
  }
  auto parsed = parse_train_options(words);
  TrainCommand command = std::get<TrainCommand>(std::move(parsed));
  command.resume = now.resume;
  if (!now.given.contains("--checkpoint")) {
    // The folder of the checkpoint that is resumed, even if it was written to a different place.
    const std::filesystem::path path = std::filesystem::path(now.resume).lexically_normal();
    const bool is_one = std::filesystem::exists(path / "index.json");
    command.checkpoint = is_one ? (path / "..").lexically_normal().string() : now.resume;
  }
  command.transport = now.transport;
  command.graphs = now.graphs;
  command.is_quiet = now.is_quiet;
  command.is_json = now.is_json;
  command.report = now.report;
  command.report_json = now.report_json;
  command.trace = now.trace;
  command.save_weights = now.save_weights;
  command.plan_out = now.plan_out;
  command.command_line = now.command_line;
  return command;
}

}  // namespace stagecraft::cli
