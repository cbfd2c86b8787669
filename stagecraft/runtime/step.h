#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/microbatch/chunk_spec.h"
#include "stagecraft/tree/arguments.h"

namespace stagecraft {

/// The weight of each microbatch's loss. Weights are applied at the loss, so gradients of several
/// steps are added as in plain autograd.
enum class LossScale : uint8_t {
  kMean,  ///< its share of the batch's rows; losses that are means give the mean over the batch
  kSum,   ///< 1
};

/// What a step does with the last stage's outputs.
enum class OutputMode : uint8_t {
  kMerged,  ///< merged into one output
  kEach,    ///< by microbatch
  kNone,    ///< released when the loss is computed
};

/// Options of one step.
struct StepOptions {
  /// The number of microbatches into which the batch is split: any number that the schedule
  /// supports, which may differ from step to step. Ignored if the batch is passed in microbatches.
  /// A rank of a Runner without arguments and targets takes the number from here.
  int32_t microbatches = 1;
  LossScale scale = LossScale::kMean;
  /// Weights by microbatch, instead of `scale`.
  std::vector<double> weights = {};
  /// Arguments of the loss by name, the same for every microbatch.
  Kwargs loss_arguments = {};

  /// Whether the step reduces gradients over the replicas (PipelineOptions::replicas). All ranks
  /// pass the same value (MetadataError). After a step without reduction the gradients are local:
  /// the true gradient of a parameter is the sum of its `.grad` over the replicas, and only that
  /// sum means something. The next step that reduces reduces all of it, so several steps cost the
  /// traffic of one.
  ///
  ///   for (int k = 0; k < 4; ++k) runner.step(part(k), {.weights = w, .reduce_grads = k == 3});
  ///
  /// Scaling does not depend on it: the losses of each step have the weights of that step, shares
  /// of its rows in all replicas for kMean. As in plain autograd, steps add up. K steps with kMean
  /// give K times the mean over their rows if all steps have the same number of rows; for the mean
  /// itself, pass `weights`. Sums have the order of steps and microbatches on each replica, then
  /// that of the replicas: the bits of one larger step that has the same weights, if its schedule
  /// runs the backwards of a stage in this order.
  ///
  /// Gradients that were reduced before are then held by replica 0 alone, so that they count once.
  /// If replicas shard gradients (ShardKind), pieces keep those that were reduced before, and the
  /// `.grad` of a parameter has those that are local. The next step that reduces adds their sum to
  /// the pieces.
  ///
  /// Clear and scale gradients on all replicas, or on none. Only the runners know that gradients
  /// are local: keep them until a step has reduced the gradients. If one rank has replaced its
  /// runner, all ranks get a MetadataError that names it. In a step that does not reduce,
  /// REDUCE_GRAD and WAIT_REDUCE_GRAD call neither hooks of StageOptions nor handlers of Callbacks;
  /// observers see them. `eval` ignores this option.
  bool reduce_grads = true;

  OutputMode outputs = OutputMode::kMerged;
  /// With a Runner: this rank gets the results, even if the last stage is on a different rank.
  bool everywhere = false;
  /// How arguments and targets are split and outputs are merged. By default along dimension 0.
  std::optional<ChunkSpec> args_spec = std::nullopt;
  std::optional<ChunkSpec> kwargs_spec = std::nullopt;
  std::optional<ChunkSpec> target_spec = std::nullopt;
  std::optional<ChunkSpec> output_spec = std::nullopt;

  /// Count the bytes of tensors during the step, for the peaks in its report and for
  /// peak_memory_estimate. Costs a few per cent of time.
  bool measure_memory = false;
};

/// A batch in microbatches. Each list has one entry for each microbatch, or is empty.
struct Microbatches {
  std::vector<Arguments> inputs = {};
  std::vector<c10::IValue> targets = {};
  /// The weights of the losses. Empty: unknown on this rank, equal if no rank knows them.
  std::vector<double> weights = {};
  /// The number of rows, if the weights are shares of this batch; 0 if it is unknown. With several
  /// replicas, weights are scaled to shares of the rows of all replicas.
  std::optional<double> rows = std::nullopt;
};

/// The results of a step, on the rank of the last stage and on ranks that asked for them.
struct StepResult {
  c10::IValue output = {};                ///< the merged output; None unless kMerged
  std::vector<c10::IValue> outputs = {};  ///< by microbatch, without history; empty unless kEach
  /// By microbatch, not weighted, without history. With several replicas, losses and weights of all
  /// of them, replica by replica, as if one pipeline had run the whole batch.
  std::vector<at::Tensor> losses = {};
  std::vector<double> weights = {};  ///< by microbatch
  /// Losses that stages passed to add_loss, by microbatch, not weighted; undefined if there is
  /// none. A Runner returns those of its own stages.
  std::vector<at::Tensor> added_losses = {};

  /// The sum of the weighted losses in the order of the microbatches; undefined without losses.
  at::Tensor loss() const;
};

/// Splits a batch: arguments and target by their specs, weights by `scale` from the rows of the
/// microbatches. ArgumentError if it cannot be split into that number of microbatches, or if there
/// is not one weight for each.
Microbatches split_batch(const Args& args, const Kwargs& kwargs, const c10::IValue& target,
                         const StepOptions& options);

/// The same for a batch in microbatches: checks that all lists have one entry for each, and sets
/// the weights.
Microbatches complete_batch(Microbatches batch, const StepOptions& options);

/// The number of microbatches. If the batch is empty on this rank, that of the options.
int32_t num_microbatches(const Microbatches& batch, const StepOptions& options);

}  // namespace stagecraft
