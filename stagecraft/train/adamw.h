#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/train/model_state.h"

namespace stagecraft {

/// The numbers of AdamW, except for the learning rate.
struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  /// For parameters with two or more dimensions; the others (biases, norms) do not decay.
  double weight_decay = 0.1;
  /// Update float32 copies of parameters of half types (bfloat16, float16), and keep their moments
  /// in float32. A parameter is then its copy, rounded: updates that are too small for the half
  /// type add up. A write to a parameter takes effect, also between updates.
  bool master_weights = false;
};

/// AdamW (Loshchilov and Hutter) for the parameters of a model that was split. Each parameter is
/// updated separately, so the result does not depend on the split. Copies of a shared parameter
/// have the same gradient and stay equal.
///
/// Not thread-safe.
class AdamW {
 public:
  /// The optimizer's state of one parameter: tensors of the parameter's shape. Moments are zero
  /// before the first update.
  struct Moments {
    at::Tensor average;         ///< of the gradient
    at::Tensor average_square;  ///< of its square
    at::Tensor updates;         ///< the number of updates; one element, float
    at::Tensor master = {};     ///< the parameter in float32; undefined if it has no such copy
  };

  /// ArgumentError for betas outside [0, 1), an epsilon or decay below 0.
  explicit AdamW(std::vector<ModelState> states, const AdamWOptions& options = {});

  /// One update of all parameters that have a gradient.
  void step(double learning_rate);

  /// Numbers of an update that are on the device of the parameters: tensors of one float element.
  struct OnDevice {
    at::Tensor learning_rate;
    at::Tensor is_skipped;    ///< 1: nothing is updated; 0 otherwise
    at::Tensor divisor = {};  ///< of the gradients, which are changed; undefined: none
  };
  /// The same update with numbers that the host need not know.
  void step(const OnDevice& numbers);
  /// Releases all gradients.
  void zero_grad();

  /// The trained states, in their order, and their moments. Changes of the tensors take effect.
  const std::vector<ModelState>& states() const { return states_; }
  const std::vector<Moments>& moments() const { return moments_.front(); }
  /// Whether a parameter has a float32 copy.
  bool has_master(const at::Tensor& parameter) const;
  /// Copies the moments of the first copy to all copies.
  void spread_moments();

 private:
  struct Batch;
  std::vector<Batch> batches() const;

  std::vector<ModelState> states_;
  AdamWOptions options_;
  std::vector<std::vector<Moments>> moments_;  // by copy, then by parameter; no tensors: no copy
};

}  // namespace stagecraft
