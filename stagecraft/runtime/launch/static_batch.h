#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "stagecraft/runtime/step.h"
#include "stagecraft/tree/arguments.h"

namespace stagecraft::detail {

/// A batch whose tensors stay where they are, for a captured step: every replay reads the same
/// memory, into which the tensors of the step are copied before.
class StaticBatch {
 public:
  /// Allocates tensors like those of the batch on `device`; their elements are not set. Values that
  /// are not tensors are those of the batch.
  StaticBatch(const Microbatches& batch, const Kwargs& loss_arguments, c10::Device device);

  const Microbatches& batch() const { return batch_; }
  const Kwargs& loss_arguments() const { return loss_arguments_; }

  /// Copies the elements, on the current stream. REQUIRES a batch with the same StepKey.
  void copy_from(const Microbatches& batch, const Kwargs& loss_arguments);

 private:
  /// The tensors at one place of all microbatches.
  struct Place {
    std::vector<at::Tensor> each;
    at::Tensor all;  // their memory, if they lie one after the other in it
  };

  Microbatches batch_;
  Kwargs loss_arguments_;
  std::vector<Place> places_;
};

}  // namespace stagecraft::detail
