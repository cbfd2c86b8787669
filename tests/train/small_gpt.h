#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "cli/train/gpt.h"
#include "stagecraft/train/trainer.h"

namespace stagecraft {

/// A model that trains in milliseconds.
GptSizes small_sizes();

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets);

/// A trainer of that model in `stages` stages, with fast learning and a clip that clips.
struct TrainerSetup {
  int32_t stages = 1;
  TrainerOptions options = {};
  GptSizes sizes = small_sizes();
  GptUse use = {};
  c10::ScalarType weights = c10::ScalarType::Float;
  /// With dropout: a model without it is for evaluation.
  bool evaluates_apart = true;
};
Trainer make_trainer(TrainerSetup setup);

/// The same in two steps: ranks that are threads cannot capture a model at once.
struct PreparedTrainer {
  Pipe pipe;
  TrainerOptions options;
  Trainer make(Transport* transport = nullptr, int32_t replicas = 1) const;
};
PreparedTrainer prepare(TrainerSetup setup);
/// Several of them with weights of their own. Unless it has a model for evaluation, a model is
/// captured once in the process, and then read from a file, which takes less time.
std::vector<PreparedTrainer> prepare_many(const TrainerSetup& setup, int32_t count);

/// Inputs and targets of a step: other ones each time, the same in every call.
std::pair<at::Tensor, at::Tensor> batch_of(int64_t step);

/// Trains up to `until` steps. Returns the losses and, after each, the norm of the gradients.
std::vector<double> curve(Trainer& trainer, int64_t until);

/// Clones of all parameters and buffers.
std::vector<at::Tensor> values_of(const Trainer& trainer);
bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b);

}  // namespace stagecraft
