#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "stagecraft/schedule/passes/lower.h"

namespace stagecraft::cli {

/// A schedule that the command line names: a file, standard input ("-"), or a name to build by.
struct Source {
  std::string what;
  std::optional<int32_t> ranks = std::nullopt;
  std::optional<int32_t> microbatches = std::nullopt;
  std::optional<int32_t> stages_per_rank = std::nullopt;
  std::optional<std::string> mode = std::nullopt;  ///< what a file has to be complete for
};

/// Which stage reads which.
struct GraphChoice {
  std::string edges;  ///< as parse_edges reads them; more than the chain
  bool no_chain = false;
};

/// Whether and how to lower.
struct Lowering {
  bool lower = false;
  std::optional<std::string> target = std::nullopt;     ///< the name of options.target
  std::optional<std::string> lookahead = std::nullopt;  ///< the text of options.unshard_lookahead
  LowerOptions options = {};
};

/// At most one of the two.
struct CostChoice {
  std::optional<std::string> costs = std::nullopt;
  std::optional<std::string> file = std::nullopt;
};

/// Each command does its work and returns the exit status (cli/failure.h); what goes wrong is
/// BadUsage, BadSchedule or an error of the library, which is a bad schedule too.
struct ScheduleCommand {
  Source source;
  Lowering lowering;
  GraphChoice graph;
  std::string format = "csv";
  std::string output = "-";
};
int run(const ScheduleCommand& command);

struct LowerCommand {
  std::string file;
  Lowering lowering = {.lower = true};
  GraphChoice graph;
  std::optional<std::string> mode = std::nullopt;
  std::string format = "csv";
  std::string output = "-";
};
int run(const LowerCommand& command);

struct VerifyCommand {
  std::string file;
  GraphChoice graph;
  std::optional<std::string> mode = std::nullopt;
  std::optional<int32_t> microbatches = std::nullopt;
  std::optional<int32_t> max_active_stages = std::nullopt;
  std::optional<std::string> lookahead = std::nullopt;  ///< the text of --unshard-lookahead
  std::size_t max_findings = 20;
};
int run(const VerifyCommand& command);

struct SimulateCommand {
  Source source;
  Lowering lowering;
  GraphChoice graph;
  CostChoice costs;
  bool unit = false;
  bool json = false;
  bool timeline = false;
};
int run(const SimulateCommand& command);

struct DrawCommand {
  Source source;
  Lowering lowering;
  GraphChoice graph;
  CostChoice costs;
  std::optional<std::string> format =
      std::nullopt;  ///< without it: what the output's name ends with
  std::optional<std::string> title = std::nullopt;
  std::optional<int32_t> width = std::nullopt;
  bool memory = false;
  bool transfers = false;
  std::string color = "auto";
  std::string output = "-";
};
int run(const DrawCommand& command);

struct SlotsCommand {
  Source source;
  Lowering lowering;
  GraphChoice graph;
  std::optional<int32_t> rank = std::nullopt;
  std::string granularity = "stage-microbatch";
  bool json = false;
};
int run(const SlotsCommand& command);

struct CompareCommand {
  int32_t ranks = 1;
  int32_t microbatches = 1;
  std::optional<int32_t> stages_per_rank = std::nullopt;
  CostChoice costs;
  int32_t max_active_stages = kDefaultActiveStages;
  std::string lookahead = "full";  ///< of UNSHARD; "least": the smallest that costs no time
  bool json = false;
};
int run(const CompareCommand& command);

/// How long and among what a plan is looked for.
struct PlanSearch {
  std::vector<int32_t> stages_per_rank = {};  ///< empty: 1 and 2
  std::vector<std::string> placements = {};   ///< empty: loop and v
  std::string recompute = "auto";
  std::string objective = "step";
  bool reorder = false;
  std::string time_limit = "5s";
  std::optional<int32_t> rounds = std::nullopt;
  int32_t seed = 1;
};

struct PlanCommand {
  std::string costs;
  bool example = false;  ///< print a cost file to start from
  std::optional<int32_t> ranks = std::nullopt;
  int32_t microbatches = 0;
  std::optional<std::string> memory = std::nullopt;
  std::optional<std::string> latency = std::nullopt;
  std::optional<std::string> bandwidth = std::nullopt;
  int32_t replicas = 1;
  std::string shard = "none";  ///< what the replicas divide among themselves
  std::optional<int32_t> max_active_stages = std::nullopt;
  std::optional<std::string> lookahead = std::nullopt;  ///< of UNSHARD; none: the planner chooses
  PlanSearch search = {};
  int32_t top = 8;
  bool schedule_only = false;
  bool curve = false;
  bool json = false;
  std::optional<int32_t> width = std::nullopt;
  std::optional<std::string> report = std::nullopt;
  std::optional<std::string> output = std::nullopt;
};
int run(const PlanCommand& command);

/// Text that was asked for instead of a command: help or the version.
struct PrintCommand {
  std::string text;
};
int run(const PrintCommand& command);

using Command =
    std::variant<PrintCommand, ScheduleCommand, LowerCommand, VerifyCommand, SimulateCommand,
                 DrawCommand, SlotsCommand, CompareCommand, PlanCommand>;

}  // namespace stagecraft::cli
