#include "cli/model/options.h"

#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "cli/failure.h"
#include "cli/option_kinds.h"

namespace stagecraft::cli {
namespace {

constexpr std::string_view kFooter =
    R"(Numbers are those of one forward at the sizes of the example that the model was exported with. A stage begins
at each module that --split names, or after it: layers.3:end. Without options about splits, all is shown.

Exit status: 0 good, 1 a program that cannot run without Python, 2 bad usage (or a file that cannot be read).

Examples:
  stagecraft model llama.pt2
  stagecraft model llama.pt2 --stages 4
  stagecraft model llama.pt2 --split model.layers.1,lm_head
  stagecraft model llama.pt2 --boundaries
  stagecraft model llama.pt2 --json
  stagecraft model llama.pt2 --stages 4 --pipe llama.pipe
  stagecraft model llama.pt2 --plan --ranks 4 --memory 8GB)";

void add_options(CLI::App* app, ModelCommand& command) {
  add_text(app, "FILE", command.file, "", "an archive that torch.export.save has written (.pt2)")
      ->required();
  add_text(app, "--program", command.program, "NAME", "of an archive that has several");
  CLI::Option* text = app->add_flag("--text", command.is_text, "the graph, operator by operator");
  CLI::Option* json =
      app->add_flag("--json", command.is_json, "everything as JSON")->excludes(text);
  CLI::Option* depth = add_count(app, "--depth", command.depth, 1, "N",
                                 "levels of modules to show; default: down to the layers");
  CLI::Option* all =
      app->add_flag("--all", command.is_all,
                    "every module, every boundary, and the positions that cannot be split");
  CLI::Option* boundaries =
      app->add_flag("--boundaries", command.has_boundaries,
                    "every position where the model can be split, and what it costs");
  CLI::Option* refused = app->add_flag("--refused", command.has_refused,
                                       "the positions where it cannot be split, and why");
  CLI::Option* stages = add_count(app, "--stages", command.stages, 1, "N",
                                  "the stages of the best split into N; default: 2, 4 and 8");
  CLI::Option* split = add_text(app, "--split", command.split, "NAME,...",
                                "the stages of a split at these modules: layers.4,layers.8");
  depth->excludes(all);
  split->excludes(stages);
  for (CLI::Option* option : {depth, all, boundaries, refused, stages, split}) {
    option->excludes(text)->group("What to show");
  }
  for (CLI::Option* option : {text, json}) option->group("How to show it");
  CLI::Option* plan = app->add_flag("--plan", command.is_planned,
                                    "plan the pipeline: split, placement, recompute, schedule")
                          ->excludes(text)
                          ->excludes(json)
                          ->excludes(stages)
                          ->excludes(split);
  std::vector<CLI::Option*> options = {
      app->add_flag("--measure", command.is_measured, "run the layers first, and use their times"),
      add_count(app, "--ranks", command.ranks, 1, "P", "of the plan; default: 2"),
      add_count(app, "--microbatches", command.microbatches, 1, "M",
                "each of the example's sizes; default: 8"),
      add_text(app, "--memory", command.memory, "BYTES",
               "of each rank, 8GB or 8GB,6GB; default: unlimited"),
      add_text(app, "--time-limit", command.time_limit, "TIME", "how long to look; default: 5s"),
      add_text(app, "--costs-out", command.costs_out, "FILE",
               "write the costs there, for stagecraft plan"),
      add_text(app, "-o,--output", command.plan_out, "FILE.plan", "write the plan there"),
  };
  for (CLI::Option* option : options) option->needs(plan)->group("Plan");
  plan->group("Plan");
  CLI::Option* pipe =
      add_text(app, "--pipe", command.pipe_out, "FILE.pipe",
               "split the model and write its stages there; FILE may be a saved graph or pipe")
          ->excludes(text)
          ->excludes(json)
          ->excludes(plan)
          ->group("Pipe");
  add_text(app, "--split-of", command.plan_file, "FILE.plan", "split as this plan does")
      ->needs(pipe)
      ->excludes(stages)
      ->excludes(split)
      ->group("Pipe");
}

}  // namespace

std::variant<ModelCommand, std::string> parse_model_options(const std::vector<std::string>& words) {
  ModelCommand command;
  CLI::App app("Say what an exported model takes, holds and costs, and where it can be split.",
               "stagecraft model");
  set_up_help(app, kFooter);
  add_options(&app, command);
  try {
    if (auto text = parse_words(app, words)) return std::move(*text);
  } catch (const BadUsage& error) {
    throw BadUsage(fmt::format("{} (see stagecraft model --help)", error.what()));
  }
  return command;
}

}  // namespace stagecraft::cli
