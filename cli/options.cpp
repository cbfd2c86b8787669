#include "cli/options.h"

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "cli/failure.h"
#include "cli/lowering_options.h"
#include "cli/option_kinds.h"
#include "cli/plan_options.h"
#include "stagecraft/schedule/builders/builders.h"

namespace stagecraft::cli {
namespace {

void add_shape(CLI::App* app, Source& source, bool required) {
  const std::string group = required ? "Shape" : "Shape (of a schedule by name)";
  add_count(app, "--ranks", source.ranks, 1, "P", "number of ranks")
      ->required(required)
      ->group(group);
  add_count(app, "--microbatches", source.microbatches, 1, "M", "number of microbatches")
      ->required(required)
      ->group(group);
  add_count(app, "--stages-per-rank", source.stages_per_rank, 1, "L",
            "stages on each rank; default: 1 or 2, by the schedule")
      ->group(group);
}

void add_mode(CLI::App* app, std::optional<std::string>& mode) {
  add_choice(app, "--mode", mode, {"training", "forward-only", "partial"},
             "the run that a file must be complete for; default: by its actions");
}

void add_source(CLI::App* app, Source& source) {
  add_text(app, "SOURCE", source.what, "FILE|NAME",
           "CSV or JSON file, - for standard input, or the name of a schedule")
      ->required();
  add_shape(app, source, false);
  add_mode(app, source.mode);
}

void add_file(CLI::App* app, std::string& file) {
  add_text(app, "FILE", file, "", "schedule as CSV or JSON, - for standard input")->required();
}

void add_graph(CLI::App* app, GraphChoice& graph) {
  constexpr const char* kGroup = "Stage graph";
  CLI::Option* edges =
      add_text(app, "--edges", graph.edges, "A-B,...",
               "stage B reads the output of stage A, too, in addition to the chain 0-1-2-...");
  app->add_flag("--no-chain", graph.no_chain, "use the edges of --edges only")
      ->needs(edges)
      ->group(kGroup);
  edges->group(kGroup);
}

/// Adds the options of lowering. The flag --lower comes first, unless the command always lowers.
void add_lowering(CLI::App* app, Lowering& lowering, bool flag) {
  constexpr const char* kGroup = "Lowering";
  CLI::Option* lower = nullptr;
  if (flag) {
    lower = app->add_flag("--lower", lowering.lower,
                          "add UNSHARD, RESHARD, REDUCE_GRAD, sends and receives")
                ->group(kGroup);
  }
  std::vector<CLI::Option*> options = add_pass_options(app, lowering.options, lowering.lookahead);
  CLI::Option* prefetch =
      add_count(app, "--prefetch", lowering.options.prefetch, 0, "K",
                "post receives K computations before their use; default: as PyTorch does");
  CLI::Option* target =
      add_choice(
          app, "--for", lowering.target, {"torch-2.13", "torch-2.15"},
          "write exactly the lists of that version of PyTorch; default: those of this runtime")
          ->excludes(prefetch);
  options.insert(options.end(), {prefetch, target});
  for (CLI::Option* option : options) {
    option->group(kGroup);
    if (flag) option->needs(lower);
  }
}

void add_costs(CLI::App* app, CostChoice& costs) {
  CLI::Option* text = add_text(app, "--costs", costs.costs, "F=..,B=..",
                               "times, see below; default: F=1,B=1,W=1,C=0");
  CLI::Option* file =
      add_text(app, "--cost-file", costs.file, "FILE", "costs as JSON, with more keys");
  text->excludes(file)->group("Costs");
  file->group("Costs");
}

void add_output(CLI::App* app, std::string& output) {
  add_text(app, "-o,--output", output, "FILE", "output file; default: standard output");
}

constexpr std::string_view kCostHelp =
    R"(What costs are (times in any one unit, memory in any other):
  F, B, W    time of a forward, of the gradients of inputs (I means the same as B), of those of weights,
             for one stage and microbatch
  FULL       time of a backward that is not split; default: B + W
  C, BW      latency of a transfer; bytes per unit of time
  BYTES      size of what goes from one stage to the next
  MF, MB, MW memory that F takes, that B (or I) gives back, that W gives back; default: 1, 0, 1
  MS         memory of a value that is sent, until it has left or is waited for; default: 0
  WEIGHTS    memory of a stage's weights
  G, MG      of sharded weights: time of UNSHARD, and memory until RESHARD; default: 0
  CAP        memory that a rank has
  OVERLAP    share of its parts that an overlap runs side by side, 0 to 1; default: 0
)";

std::string schedule_names() {
  std::string text = "Schedules:\n";
  for (const ScheduleKind& kind : schedule_kinds()) {
    text += fmt::format("  {:<23}{}\n", kind.name, kind.summary);
  }
  return text;
}

CLI::App* add_command(CLI::App& app, const std::string& name, const std::string& what,
                      std::string_view examples, std::string_view more = "") {
  CLI::App* command = app.add_subcommand(name, what);
  command->footer(fmt::format("{}{}Examples:\n{}", more, more.empty() ? "" : "\n", examples));
  return command;
}

struct Commands {
  ScheduleCommand schedule;
  LowerCommand lower;
  VerifyCommand verify;
  SimulateCommand simulate;
  DrawCommand draw;
  SlotsCommand slots;
  CompareCommand compare;
  PlanCommand plan;
};

void add_schedule(CLI::App& app, ScheduleCommand& command) {
  CLI::App* sub = add_command(app, "schedule", "Build a schedule by name and print it.",
                              R"(  stagecraft schedule 1F1B --ranks 4 --microbatches 8
  stagecraft schedule Interleaved1F1B --ranks 4 --microbatches 8 --stages-per-rank 3 --format text
  stagecraft schedule ZBVZeroBubble --ranks 4 --microbatches 8 --lower -o zbv.csv)",
                              schedule_names());
  add_text(sub, "NAME", command.source.what, "", "name of the schedule; case does not matter")
      ->required();
  add_shape(sub, command.source, true);
  add_lowering(sub, command.lowering, true);
  add_graph(sub, command.graph);
  sub->get_option("--edges")->needs("--lower");
  add_choice(sub, "--format", command.format, {"csv", "text", "json"},
             "csv: one line for each rank (the default); text: a table");
  add_output(sub, command.output);
}

void add_lower(CLI::App& app, LowerCommand& command) {
  CLI::App* sub =
      add_command(app, "lower", "Add transfers, gathers and reductions to a compute schedule.",
                  R"(  stagecraft schedule 1F1B --ranks 4 --microbatches 8 -o 1f1b.csv
  stagecraft lower 1f1b.csv -o lowered.csv
  stagecraft lower 1f1b.csv --edges 0-2,0-3 --prefetch 1
  stagecraft lower 1f1b.csv --for torch-2.15 -o for_pytorch.csv
  stagecraft schedule GPipe --ranks 4 --microbatches 8 | stagecraft lower -)");
  add_file(sub, command.file);
  add_lowering(sub, command.lowering, false);
  add_graph(sub, command.graph);
  add_mode(sub, command.mode);
  add_choice(sub, "--format", command.format, {"csv", "text", "json"},
             "csv: one line for each rank (the default); text: a table");
  add_output(sub, command.output);
}

void add_verify(CLI::App& app, VerifyCommand& command) {
  CLI::App* sub = add_command(
      app, "verify", "Say whether a schedule can be executed and, if not, why.",
      R"(  stagecraft schedule DualPipeV --ranks 4 --microbatches 8 --lower -o dualpipe.csv
  stagecraft verify dualpipe.csv
  stagecraft schedule ForwardOnly --ranks 4 --microbatches 8 | stagecraft verify - --mode forward-only)",
      "Exit status: 0 for a good schedule, 1 for a bad one. A finding gives rank, slot (from 0) "
      "and action.\n");
  add_file(sub, command.file);
  add_graph(sub, command.graph);
  add_mode(sub, command.mode);
  add_count(sub, "--microbatches", command.microbatches, 1, "M",
            "required number of microbatches; default: as many as occur");
  add_count(sub, "--max-active-stages", command.max_active_stages, 1, "N",
            "stages of a rank that may be unsharded at the same time; default: any number");
  add_text(sub, "--unshard-lookahead", command.lookahead, "auto|N,...",
           "how many stages ahead a rank may unshard; default: any number");
  add_count(sub, "--max-findings", command.max_findings, 1, "N", "findings to print; default: 20");
}

void add_simulate(CLI::App& app, SimulateCommand& command) {
  CLI::App* sub = add_command(
      app, "simulate", "Time a schedule: makespan, bubble, memory, critical path.",
      R"(  stagecraft simulate 1F1B --ranks 8 --microbatches 24 --costs F=18522,B=18086,W=9337,C=601
  stagecraft simulate ZBVZeroBubble --ranks 4 --microbatches 8 --unit
  stagecraft schedule GPipe --ranks 4 --microbatches 8 | stagecraft simulate - --json)",
      kCostHelp);
  add_source(sub, command.source);
  add_lowering(sub, command.lowering, true);
  add_graph(sub, command.graph);
  add_costs(sub, command.costs);
  sub->add_flag("--unit", command.unit, "every action takes one step, transfers too; lowers first")
      ->excludes("--costs")
      ->excludes("--cost-file")
      ->group("Costs");
  CLI::Option* json = sub->add_flag("--json", command.json, "all results as JSON");
  sub->add_flag("--timeline", command.timeline, "with the times of every action")->needs(json);
}

void add_draw(CLI::App& app, DrawCommand& command) {
  CLI::App* sub = add_command(
      app, "draw", "Draw a schedule: terminal, SVG, interactive HTML page or Perfetto trace.",
      R"(  stagecraft draw 1F1B --ranks 4 --microbatches 8
  stagecraft draw ZBVZeroBubble --ranks 4 --microbatches 8 -o zbv.html
  stagecraft draw GPipe --ranks 4 --microbatches 8 --costs F=10,B=12,W=8,C=2 --memory -o gpipe.svg
  stagecraft schedule DualPipeV --ranks 4 --microbatches 8 | stagecraft draw - --format trace -o trace.json)",
      kCostHelp);
  add_source(sub, command.source);
  add_lowering(sub, command.lowering, true);
  add_graph(sub, command.graph);
  add_costs(sub, command.costs);
  add_choice(sub, "--format", command.format, {"terminal", "svg", "html", "trace"},
             "default: by the output's name (.svg, .html, .json), else terminal");
  add_text(sub, "--title", command.title, "TEXT", "default: the schedule's or file's name");
  add_count(sub, "--width", command.width, 40, "N",
            "columns of a terminal (default: its width) or pixels of an SVG (default: 960)");
  sub->add_flag("--memory", command.memory, "SVG: memory of each rank under its lane");
  sub->add_flag("--transfers", command.transfers, "SVG: lines for transfers to a different rank");
  add_choice(sub, "--color", command.color, {"auto", "always", "never"},
             "colours of a terminal drawing; auto, the default: if the output is a terminal");
  add_output(sub, command.output);
}

void add_slots(CLI::App& app, SlotsCommand& command) {
  CLI::App* sub = add_command(
      app, "slots", "Say which activations of a rank can share a buffer, and how many there are.",
      R"(  stagecraft slots ZBVZeroBubble --ranks 4 --microbatches 8
  stagecraft slots 1F1B --ranks 4 --microbatches 8 --rank 0
  stagecraft schedule GPipe --ranks 4 --microbatches 8 | stagecraft slots - --granularity microbatch --json)");
  add_source(sub, command.source);
  add_lowering(sub, command.lowering, true);
  add_graph(sub, command.graph);
  add_count(sub, "--rank", command.rank, 0, "R", "only this rank, with what is in each buffer");
  add_choice(sub, "--granularity", command.granularity, {"stage-microbatch", "microbatch"},
             "one buffer for a microbatch on a stage, or on all stages of the rank");
  sub->add_flag("--json", command.json, "all activations as JSON");
}

void add_compare(CLI::App& app, CompareCommand& command) {
  CLI::App* sub = add_command(
      app, "compare", "Time every schedule of one shape, the fastest first.",
      R"(  stagecraft compare --ranks 8 --microbatches 24 --costs F=18522,B=18086,W=9337,C=601
  stagecraft compare --ranks 4 --microbatches 16 --stages-per-rank 4 --json)",
      fmt::format("All schedules split the same model. Costs are those of one rank's part, a P-th "
                  "of the model. "
                  "With L stages a rank,\neach stage has 1/L of the time, memory and weights; "
                  "latency and BYTES do not change.\n\n{}",
                  kCostHelp));
  add_count(sub, "--ranks", command.ranks, 1, "P", "ranks")->required();
  add_count(sub, "--microbatches", command.microbatches, 1, "M", "microbatches")->required();
  add_count(sub, "--stages-per-rank", command.stages_per_rank, 1, "L",
            "try this number of stages, too, for schedules that can have it; else 1 or 2");
  add_costs(sub, command.costs);
  add_count(sub, "--max-active-stages", command.max_active_stages, 1, "N",
            fmt::format("with G or MG: unsharded stages at a time on a rank; default: {}",
                        kDefaultActiveStages));
  add_choice(
      sub, "--unshard-lookahead", command.lookahead, {"full", "auto", "least"},
      "with G or MG: stages to unshard ahead; least: the smallest numbers that cost no time");
  sub->add_flag("--json", command.json, "the table as JSON");
}

Command parse(CLI::App& app, Commands& commands, const std::vector<std::string>& words) {
  if (auto text = parse_words(app, words)) return PrintCommand{std::move(*text)};
  if (app.got_subcommand("schedule")) return commands.schedule;
  if (app.got_subcommand("lower")) return commands.lower;
  if (app.got_subcommand("verify")) return commands.verify;
  if (app.got_subcommand("simulate")) return commands.simulate;
  if (app.got_subcommand("draw")) return commands.draw;
  if (app.got_subcommand("slots")) return commands.slots;
  if (app.got_subcommand("compare")) return commands.compare;
  if (app.got_subcommand("plan")) return commands.plan;
  throw BadUsage("a subcommand is missing");
}

}  // namespace

Command parse_command_line(int argc, char** argv) {
  CLI::App app(
      "Stagecraft: pipeline schedules as data. Build, lower, verify, time and draw them; train "
      "with them.",
      "stagecraft");
  app.require_subcommand(0, 1);
  set_up_help(
      app,
      R"(Exit status: 0 good, 1 bad schedule, 2 bad usage (or a file that cannot be read or written).

Examples:
  stagecraft schedule 1F1B --ranks 4 --microbatches 8 --format text
  stagecraft schedule 1F1B --ranks 4 --microbatches 8 --lower | stagecraft verify -
  stagecraft compare --ranks 4 --microbatches 16
  stagecraft simulate --help)");
  Commands commands;
  add_schedule(app, commands.schedule);
  add_lower(app, commands.lower);
  add_verify(app, commands.verify);
  add_simulate(app, commands.simulate);
  add_draw(app, commands.draw);
  add_slots(app, commands.slots);
  add_compare(app, commands.compare);
  add_plan(app, commands.plan);
  // main.cpp starts these programs with all their arguments. They are added here for the list of
  // subcommands.
  app.add_subcommand(
      "model", "Say what an exported model costs and where to split it: stagecraft model --help.");
  app.add_subcommand("compile",
                     "Compile the stages of a model ahead of time: stagecraft compile --help.");
  app.add_subcommand("train",
                     "Train a language model through a pipeline: stagecraft train --help.");
  try {
    return parse(app, commands, std::vector<std::string>(argv + 1, argv + argc));
  } catch (const BadUsage& error) {
    const std::vector<CLI::App*> chosen = app.get_subcommands();
    const std::string which = chosen.empty() ? std::string() : chosen.front()->get_name() + ' ';
    throw BadUsage(fmt::format("{} (see stagecraft {}--help)", error.what(), which));
  }
}

}  // namespace stagecraft::cli
