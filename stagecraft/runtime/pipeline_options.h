#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stagecraft/base/shard_kind.h"
#include "stagecraft/runtime/loss.h"
#include "stagecraft/runtime/schedule_source.h"
#include "stagecraft/stage/ports.h"
#include "stagecraft/stage/stage.h"
#include "stagecraft/stage/tied_weight.h"
#include "stagecraft/tree/arguments.h"

namespace stagecraft {

class ParameterShards;

/// The source of the numbers that random operators in stages draw.
enum class RandomSource : uint8_t {
  /// A stream for each microbatch and stage. Numbers do not depend on ranks and threads, and
  /// `seed`, step, stage and microbatch determine them.
  kPerMicrobatch,
  /// The generators of the process, as in a program without a pipeline: the number of draws and
  /// their order matter. The program then sets the seed, which may differ between ranks.
  kProcess,
};

/// Whether a Pipeline replays steps, and a Runner compute actions, as graphs of its device.
enum class GraphMode : uint8_t {
  kAuto,  ///< where it is possible; a step that cannot be captured is run
  /// As kAuto, but a step that a Pipeline cannot capture is an Error. A Runner runs such a step,
  /// and launches().reason says why.
  kOn,
  kOff,  ///< never
};

/// Options of a Pipeline or a Runner. All ranks of a world must have the same options, except for
/// `loss`, `timeout`, `threads_per_rank` and `graphs`.
struct PipelineOptions {
  /// The name of a builder. It places the stages on `ranks` ranks.
  std::string schedule = "1F1B";
  /// The number of ranks of one replica. By default a Pipeline has as many as the stages fill, one
  /// or two stages each, depending on the schedule. A Runner has those of its world.
  std::optional<int32_t> ranks = std::nullopt;
  /// Any other schedule. It replaces `schedule` and `ranks`.
  std::optional<ScheduleSource> source = std::nullopt;

  /// Needed on the rank of the last stage, to train.
  Loss loss = {};
  /// Where the inputs of the stages come from. By default the stages are a chain.
  std::optional<Ports> ports = std::nullopt;
  /// Weights that several stages hold as copies. Stages that hold the same tensor need no entry:
  /// autograd adds their gradients, in the order in which the ranks compute them.
  std::vector<TiedWeight> ties = {};
  /// How long a rank waits for a value or for the other ranks before it throws TimeoutError.
  std::chrono::nanoseconds timeout = std::chrono::seconds(60);
  /// Seed of random operators in stages. By default the seed of the process's CPU generator at the
  /// time of construction.
  std::optional<uint64_t> seed = std::nullopt;
  RandomSource random = RandomSource::kPerMicrobatch;
  /// The number of pipelines that train one model, for a Runner. The world has the ranks of all
  /// replicas, replica by replica. Each replica is given its own part of the batch, which counts by
  /// its rows. Gradients are those of the whole batch, with the same bits on every replica. A
  /// Pipeline refuses more than one: its threads share their memory, so more microbatches, or more
  /// ranks, do the same without copies of the model.
  int32_t replicas = 1;
  /// What the replicas divide among themselves. Losses, gradients and weights keep their bits. An
  /// optimizer updates the pieces of Runner::shards, and then calls Runner::gather_weights.
  /// docs/sharding.md. It has no effect on one replica. A Pipeline refuses it.
  ShardKind shard = ShardKind::kNone;
  /// Modules whose parameters are units of their own (ShardUnit), by name: "blocks.3". A parameter
  /// belongs to the innermost of them, and the other parameters of a stage are one unit for each
  /// type. The first step throws a MetadataError for a module without parameters to shard.
  std::vector<std::string> shard_units = {};
  /// The pieces of a different Runner over the same parameters and transport, such as that for
  /// training in one for evaluation. By default the Runner shards its parameters itself.
  std::shared_ptr<ParameterShards> shards = nullptr;
  /// Threads inside operators, for each rank. Results can depend on the number in their last bits.
  /// By default a Pipeline divides the number of the constructing thread among its ranks, and a
  /// Runner keeps the number of its thread. A single rank of a Pipeline runs on the caller's thread
  /// as a Runner does: it keeps the number of that thread, or sets it when it is constructed.
  std::optional<int32_t> threads_per_rank = std::nullopt;
  /// Wait for every send where it is posted, as if the network had no buffers. Between the threads
  /// of a Pipeline a send then also waits for its receive. For finding schedules that rely on
  /// buffering.
  bool zero_buffering = false;
  /// A Pipeline whose stages are all on one CUDA device captures a step as one graph, after two
  /// steps of the same shapes, and from then on replays it: one launch instead of one for each
  /// operator. Gradients, losses and random numbers keep their bits. Code on the host (forwards,
  /// losses, hooks) runs in the capture only, so numbers that it computes are frozen (docs/gpu.md).
  /// Steps that measure memory, and pipelines with handlers or observers of actions, are run. A
  /// Runner whose stages are all on one CUDA device does so for each compute action, if it has
  /// neither replicas nor ties; over NCCL only with kOn.
  GraphMode graphs = GraphMode::kAuto;
  /// The number of graphs that are kept, one for each set of shapes, number of microbatches and set
  /// of existing gradients. The least recently used graph is released first.
  int32_t max_graphs = 8;
  /// Called before a step with the arguments of each microbatch that has all inputs of the model,
  /// to refuse what the model cannot take. A Pipe sets it to the guards of an exported model.
  std::function<void(const Arguments&)> check_arguments = {};
  /// The options of the stages of a Pipe, called once for each stage of this process. Their device
  /// is replaced by that of the stage's tensors. Stages that are passed to a Pipeline or Runner
  /// have their own options (ArgumentError if this is set, too).
  ///
  ///   options.stage_options = [&](StageId) { return StageOptions{.around_forward = scope}; };
  std::function<StageOptions(StageId)> stage_options = {};
};

}  // namespace stagecraft
