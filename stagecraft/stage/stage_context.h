#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/base/index.h"

namespace stagecraft {

/// Tells a forward where it runs. There is one for the forward of each microbatch, on its thread.
struct StageContext {
  StageId stage;
  int32_t num_stages = 1;
  MicrobatchId microbatch;
  bool is_training = false;  ///< a backward will follow
  /// The seed of this microbatch in this step. It is the same in all stages, so that random numbers
  /// do not depend on the split of the model.
  std::optional<uint64_t> draw = std::nullopt;
  std::vector<at::Tensor> losses = {};
};

/// The context of the forward that runs on this thread; null outside a forward.
StageContext* current_stage();

/// Called inside a stage's forward, adds a loss (load balance, a penalty) to that of the
/// microbatch. It has the weight of the microbatch and is part of the same backward, in every
/// schedule. Outside a forward, and if no backward follows, it is dropped. ArgumentError unless the
/// loss has one element.
void add_loss(const at::Tensor& loss);

namespace detail {

/// Makes a context the current one of this thread.
class StageContextGuard {
 public:
  explicit StageContextGuard(StageContext& context);
  ~StageContextGuard();
  StageContextGuard(const StageContextGuard&) = delete;
  StageContextGuard& operator=(const StageContextGuard&) = delete;

 private:
  StageContext* previous_;
};

}  // namespace detail
}  // namespace stagecraft
