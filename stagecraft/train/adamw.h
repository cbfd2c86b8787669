#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/train/model_state.h"

namespace stagecraft {

/// The numbers of AdamW, but for the learning rate.
struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  /// Of parameters with two dimensions or more; the others (biases, norms) do not decay.
  double weight_decay = 0.1;
};

/// AdamW (Loshchilov and Hutter) over the parameters of a cut model. Each is updated by itself, so
/// the result does not depend on the cut. Copies of a shared parameter have the same gradient and
/// stay the same.
///
/// Belongs to one thread.
class AdamW {
 public:
  /// What the optimizer remembers of one parameter; tensors like the parameter's, zero before its
  /// first update.
  struct Moments {
    at::Tensor average;         ///< of the gradient
    at::Tensor average_square;  ///< of its square
    at::Tensor updates;         ///< how many there were; one element, float
  };

  /// ArgumentError for betas outside [0, 1), an epsilon or decay below 0.
  explicit AdamW(std::vector<ModelState> states, const AdamWOptions& options = {});

  /// One update of all parameters that have a gradient.
  void step(double learning_rate);
  /// Lets go of all gradients.
  void zero_grad();

  /// By parameter, those of the states that are trained, in their order. What is changed in the
  /// tensors is taken over.
  const std::vector<ModelState>& states() const { return states_; }
  const std::vector<Moments>& moments() const { return moments_.front(); }
  /// Makes the moments of all copies those of the first.
  void spread_moments();

 private:
  std::vector<ModelState> states_;
  AdamWOptions options_;
  std::vector<std::vector<Moments>> moments_;  // by copy, then by parameter; no tensors: no copy
};

}  // namespace stagecraft
