#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/train/gpt.h"
#include "stagecraft/plan/plan_file.h"
#include "stagecraft/schedule/passes/lower.h"
#include "stagecraft/train/learning_rate.h"

namespace stagecraft::cli {

/// The command line of `stagecraft-train`.
struct TrainCommand {
  std::vector<std::string> data;  ///< empty: the installed corpus
  double held_out = 0.1;
  std::string unit = "tokens";  ///< unit of the speed; "examples": a row is one

  GptSizes model;
  std::string model_file;  ///< an exported model or compiled stages; empty: a Gpt of those sizes
  std::string program;     ///< of the archive, if it has several

  int32_t ranks = 2;  ///< of one replica
  int32_t replicas = 1;
  std::string shard = "none";  ///< what the replicas divide among themselves
  std::string shard_units;     ///< names of modules that are units of their own
  std::string transport = "auto";
  std::string schedule = "1F1B";                        ///< a name or a file
  LowerOptions lowering;                                ///< of the schedule, without the lookahead
  std::optional<std::string> lookahead = std::nullopt;  ///< the text of --unshard-lookahead
  std::optional<int32_t> stages = std::nullopt;
  std::string split;  ///< names of modules; each begins a stage
  std::string policy = "cost";
  std::string recompute;                             ///< "all", or numbers of stages
  std::string plan;                                  ///< "auto" or a file; empty: no plan
  std::optional<std::string> memory = std::nullopt;  ///< of each rank, for --plan auto
  int32_t plan_steps = 7;                            ///< measured
  std::string plan_time = "5s";
  std::string plan_out;
  /// The plan, when it is made or read: it gives split, schedule, recompute and microbatches.
  std::shared_ptr<const SavedPlan> planned = nullptr;
  int32_t threads = 1;
  std::string device = "cpu";
  std::string graphs = "auto";
  double timeout = 60;    ///< seconds
  int32_t processes = 0;  ///< that this program starts; 0: none
  int32_t restarts = 0;

  int32_t steps = 400;
  int32_t batch = 16;  ///< rows for each update
  int32_t microbatches = 8;
  int32_t accumulate = 1;
  LearningRate learning_rate = {.peak = 3e-3, .least = 3e-4, .warmup = 20, .steps = 0};
  double weight_decay = 0.1;
  double clip = 1;
  bool bf16 = false;
  bool master_weights = false;
  int32_t seed = 1;

  int32_t eval_every = 100;  ///< 0: never
  int32_t eval_batches = 4;
  int32_t sample = 200;  ///< bytes of sample text at the end; 0: none
  std::string prompt = "\n";
  double temperature = 0.8;

  std::string checkpoint;    ///< folder; empty: no checkpoints
  int32_t save_every = 100;  ///< steps
  std::optional<std::chrono::nanoseconds> save_time = std::nullopt;  ///< instead of steps
  int32_t keep = 2;
  std::string resume;  ///< a folder; "auto": the newest checkpoint of `checkpoint`, if there is one
  std::string save_weights;  ///< a state dict for Python, at the end

  bool is_quiet = false;
  bool is_json = false;
  std::string report;
  std::string report_json;
  std::string trace;

  /// The number of microbatches of a batch.
  int64_t parts() const { return int64_t{microbatches} * accumulate * replicas; }

  std::string command_line;  ///< as it was typed

  /// The options that were given, by name ("--width" -> "64"), for resuming the run.
  std::map<std::string, std::vector<std::string>> given;
};

}  // namespace stagecraft::cli
