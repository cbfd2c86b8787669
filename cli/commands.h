#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "stagecraft/schedule/passes/lower.h"

namespace stagecraft::cli {

/// A schedule that the command line names: a file, standard input ("-"), or the name of a schedule
/// to build.
struct Source {
  std::string what;
  std::optional<int32_t> ranks = std::nullopt;
  std::optional<int32_t> microbatches = std::nullopt;
  std::optional<int32_t> stages_per_rank = std::nullopt;
  std::optional<std::string> mode = std::nullopt;  ///< the run that a file must be complete for
};

/// Which stage reads the output of which stage.
struct GraphChoice {
  std::string edges;  ///< text for parse_edges; in addition to the chain
  bool no_chain = false;
};

/// Whether and how to lower.
struct Lowering {
  bool lower = false;
  std::optional<std::string> target = std::nullopt;     ///< the name of options.target
  std::optional<std::string> lookahead = std::nullopt;  ///< the text of options.unshard_lookahead
  LowerOptions options = {};
};

/// The costs of a command. At most one of the two is set.
struct CostChoice {
  std::optional<std::string> costs = std::nullopt;
  std::optional<std::string> file = std::nullopt;
};

/// Each run() executes a command and returns the exit status (cli/failure.h). Throws BadUsage,
/// BadSchedule, or an error of the library, which the program reports as a bad schedule.
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
      std::nullopt;  ///< without a value: by the ending of the output's name
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
  std::string lookahead = "full";  ///< or "least": the fewest that cost no time
  bool json = false;
};
int run(const CompareCommand& command);

/// The limits and the space of the search for a plan.
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
  std::optional<std::string> lookahead = std::nullopt;  ///< none: the planner chooses
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

/// A text to print instead of executing a command: help or the version.
struct PrintCommand {
  std::string text;
};
int run(const PrintCommand& command);

using Command =
    std::variant<PrintCommand, ScheduleCommand, LowerCommand, VerifyCommand, SimulateCommand,
                 DrawCommand, SlotsCommand, CompareCommand, PlanCommand>;

}  // namespace stagecraft::cli
