#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/train/trainer.h"
#include "stagecraft/train/trainer_world.h"
#include "stagecraft/train/training_state.h"

namespace stagecraft {

/// The losses of an update's microbatches, on their device, and their weights.
struct UpdateLosses {
  std::vector<at::Tensor> losses = {};
  std::vector<double> weights = {};

  /// The sum of the weighted losses. `read` begins with the losses, on the CPU.
  double sum(const std::vector<at::Tensor>& read) const;
};

/// Measures the gradients of an update, with the same results on every rank. All ranks make the
/// same calls, in TrainerWorld::together.
class UpdateMeasures {
 public:
  /// The arguments must outlive the object.
  UpdateMeasures(TrainerWorld& world, const TrainingState& state) : world_(world), state_(state) {}

  /// Sets the loss, the norm of all gradients and the share of the bubble. The host waits for the
  /// device here, and only here.
  void measure(TrainStep& step, const UpdateLosses& losses);

  /// The error message for a norm that is not finite.
  std::string describe_problem(double norm);

 private:
  void measure_replicas(TrainStep& step, const UpdateLosses& losses);
  int64_t place_of(const std::string& name) const;

  TrainerWorld& world_;
  const TrainingState& state_;
};

}  // namespace stagecraft
