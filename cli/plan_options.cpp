#include "cli/plan_options.h"

#include <limits>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/option_kinds.h"

namespace stagecraft::cli {
namespace {

constexpr const char* kExamples =
    R"(--example prints a cost file; docs/planning.md describes it. Ctrl-C ends the search: the best plan so far is printed.
Exit status: 0 good, 1 nothing fits, 2 bad usage.

Examples:
  stagecraft plan --example > gpt48.json
  stagecraft plan gpt48.json --ranks 8 --microbatches 64 --memory 6500
  stagecraft plan gpt48.json --ranks 8 --microbatches 64 --time-limit 1s -o gpt48.plan --report plan.html
  stagecraft plan gpt48.json --ranks 4 --microbatches 16 --rounds 2 --curve
  stagecraft plan gpt48.json --ranks 4 --microbatches 16 --memory 5000 --replicas 4 --shard parameters
  stagecraft simulate gpt48.plan)";

std::vector<std::string> parts_of(const std::string& text) {
  return CLI::detail::split(text, ',');
}

}  // namespace

void add_plan_search(CLI::App* app, PlanSearch& search, const char* group) {
  app->add_option_function<std::string>(
         "--stages-per-rank",
         [&search](const std::string& text) {
           search.stages_per_rank.clear();
           for (const std::string& part : parts_of(text)) {
             search.stages_per_rank.push_back(
                 static_cast<int32_t>(parse_count("--stages-per-rank", part, 1, 512)));
           }
         },
         "numbers of stages a rank to try; default: 1,2")
      ->type_name("L,...")
      ->group(group);
  app->add_option_function<std::string>(
         "--placement",
         [&search](const std::string& text) {
           search.placements.clear();
           for (const std::string& part : parts_of(text)) {
             if (part != "loop" && part != "v") {
               throw BadUsage(fmt::format("--placement is loop, v or loop,v, got {}", quote(part)));
             }
             search.placements.push_back(part);
           }
         },
         "placements to try; default: loop,v")
      ->type_name("loop,v")
      ->group(group);
  add_choice(app, "--recompute", search.recompute, {"auto", "none", "all"},
             "which stages recompute; auto, the default: as the planner chooses")
      ->group(group);
  add_choice(app, "--objective", search.objective, {"step", "span"},
             "step, the default: all ranks begin and end together; span: each rank for itself")
      ->group(group);
  app->add_flag("--reorder", search.reorder,
                "microbatches of different sizes may run in a different order")
      ->group(group);
  CLI::Option* limit =
      add_text(app, "--time-limit", search.time_limit, "TIME", "time of the search; default: 5s");
  limit->group(group);
  add_count(app, "--rounds", search.rounds, 1, "N",
            "rounds of the search, instead of a time: the same plan on every machine")
      ->excludes(limit)
      ->group(group);
  add_count(app, "--seed", search.seed, 0, "N", "seed of the search; default: 1")->group(group);
}

namespace {

void add_plan_sharding(CLI::App* app, PlanCommand& command) {
  const std::vector<CLI::Option*> options = {
      add_count(app, "--replicas", command.replicas, 1, "R",
                "pipelines that train together; a rank is one of each; default: 1"),
      add_choice(app, "--shard", command.shard, {"none", "optimizer", "gradients", "parameters"},
                 "what replicas divide among themselves, each with those before it; default: none"),
      add_count(app, "--max-active-stages", command.max_active_stages, 1, "N",
                "with --shard parameters: unsharded stages at a time on a rank; default: the best"),
      add_text(
          app, "--unshard-lookahead", command.lookahead, "full|auto|least|N,...",
          "with --shard parameters: stages to unshard ahead; default: least, which costs no time")};
  for (CLI::Option* option : options) option->group("Replicas");
}

}  // namespace

void add_plan(CLI::App& app, PlanCommand& command) {
  CLI::App* sub = app.add_subcommand(
      "plan", "Find the best pipeline for a model, ranks and memory, and a lower bound for all.");
  sub->footer(kExamples);
  add_text(sub, "COSTS", command.costs, "FILE",
           "costs of the layers as JSON, - for standard input");
  sub->add_flag("--example", command.example, "print a cost file to start from");
  add_count(sub, "--ranks", command.ranks, 1, "P", "number of ranks");
  add_count(sub, "--microbatches", command.microbatches, 1, "M", "number of microbatches");
  add_text(sub, "--memory", command.memory, "BYTES",
           "memory of each rank: one amount, or one for each: 8GB,8GB,6GB; default: unlimited");
  add_text(sub, "--latency", command.latency, "TIME", "latency of a transfer; default: the file's");
  add_text(sub, "--bandwidth", command.bandwidth, "BW",
           "bytes per unit of time; default: the file's");
  sub->add_flag("--schedule-only", command.schedule_only,
                "the file has costs of stages: search the order of their actions only");
  add_plan_sharding(sub, command);
  add_plan_search(sub, command.search, "Search");
  add_count(sub, "--top", command.top, 1, "N", "rows of the table; default: 8");
  sub->add_flag("--curve", command.curve, "time against memory, as a table");
  sub->add_flag("--json", command.json, "everything as JSON");
  add_count(sub, "--width", command.width, 40, "N", "columns of the drawing");
  add_text(sub, "--report", command.report, "FILE.html", "a page with the plan");
  add_text(sub, "-o,--output", command.output, "FILE.plan", "file for the plan");
}

}  // namespace stagecraft::cli
