#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/base/index.h"

namespace stagecraft {

/// What a forward can know of where it runs. One for each microbatch's forward, on its thread.
struct StageContext {
  StageId stage;
  int32_t num_stages = 1;
  MicrobatchId microbatch;
  bool is_training = false;  ///< a backward will follow
  /// The seed of this microbatch in this step, the same in all stages, so that an operator can draw
  /// numbers that do not depend on where the model is cut.
  std::optional<uint64_t> draw = std::nullopt;
  std::vector<at::Tensor> losses = {};
};

/// That of the forward that is running on this thread; null outside.
StageContext* current_stage();

/// Called inside a stage's forward: adds a loss of its own (load balance, a penalty) to that of the
/// microbatch. It is weighted as the microbatch is and differentiated in the same backward, in
/// every schedule. One element. Outside a forward, and where no backward follows, it is
/// dropped. ArgumentError unless the loss has one element.
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
