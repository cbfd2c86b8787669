#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/microbatch/chunk_spec.h"
#include "stagecraft/tree/arguments.h"

namespace stagecraft {

/// How much each microbatch's loss counts. Weights are applied at the loss, so gradients add up
/// over steps as with plain autograd.
enum class LossScale : uint8_t {
  kMean,  ///< its share of the batch's rows: for losses that are means, the mean over the batch
  kSum,   ///< 1
};

/// What becomes of the last stage's outputs.
enum class OutputMode : uint8_t {
  kMerged,  ///< merged into that of the batch
  kEach,    ///< by microbatch
  kNone,    ///< let go of as soon as the loss is known
};

/// Options of one step.
struct StepOptions {
  /// Into how many microbatches the batch is cut. Any number that the schedule can have, another
  /// one each step. Not read where the batch comes in microbatches. A Runner's rank that is given
  /// nothing of the batch takes the number from here.
  int32_t microbatches = 1;
  LossScale scale = LossScale::kMean;
  /// By microbatch; instead of `scale`.
  std::vector<double> weights = {};
  /// Given to the loss by name, the same for every microbatch.
  Kwargs loss_arguments = {};

  OutputMode outputs = OutputMode::kMerged;
  /// This rank gets the results too, though the last stage is on another.
  bool everywhere = false;
  /// How the arguments are cut, the targets, and how the outputs are merged; without: along
  /// dimension 0.
  std::optional<ChunkSpec> args_spec = std::nullopt;
  std::optional<ChunkSpec> kwargs_spec = std::nullopt;
  std::optional<ChunkSpec> target_spec = std::nullopt;
  std::optional<ChunkSpec> output_spec = std::nullopt;

  /// Count the bytes of tensors while the step runs: peaks in its report, and what
  /// peak_memory_estimate needs. Costs a few per cent.
  bool measure_memory = false;
};

/// A batch that is cut already: one entry a microbatch in each, or none at all.
struct Microbatches {
  std::vector<Arguments> inputs = {};
  std::vector<c10::IValue> targets = {};
  /// How much each loss counts; empty: unknown here, then as their equal share.
  std::vector<double> weights = {};
  /// Set where the weights are shares of this batch: of so many rows; 0: nobody has counted. Of
  /// several replicas each has a share of all their rows.
  std::optional<double> rows = std::nullopt;
};

/// What a step gives back, on the rank that has the last stage or asked for it.
struct StepResult {
  c10::IValue output = {};                ///< of the batch; None unless merged
  std::vector<c10::IValue> outputs = {};  ///< by microbatch, without history; empty unless kEach
  /// By microbatch, not weighted, without history. Of several replicas: those of all, replica by
  /// replica, as if one pipeline had had the whole batch; the weights too.
  std::vector<at::Tensor> losses = {};
  std::vector<double> weights = {};  ///< by microbatch
  /// What stages gave to add_loss, by microbatch, not weighted; undefined where nothing was. On one
  /// rank's runner: of its own stages.
  std::vector<at::Tensor> added_losses = {};

  /// The sum of the weighted losses in the order of the microbatches; undefined without losses.
  at::Tensor loss() const;
};

/// Cuts a batch: arguments by their specs, the target by its own, weights by `scale` from the rows
/// of the microbatches. ArgumentError when it cannot be cut into as many microbatches as asked, or
/// weights are not one for each.
Microbatches split_batch(const Args& args, const Kwargs& kwargs, const c10::IValue& target,
                         const StepOptions& options);

/// The same for a batch that comes in microbatches: checks that all parts have one entry for each,
/// and fills in the weights.
Microbatches complete_batch(Microbatches batch, const StepOptions& options);

/// How many it has; where nothing of it is known here, as many as the options say.
int32_t num_microbatches(const Microbatches& batch, const StepOptions& options);

}  // namespace stagecraft
