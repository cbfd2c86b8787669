#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/runtime/step_plan.h"
#include "stagecraft/stage/stage.h"

namespace stagecraft::detail {

/// Everything that a captured step depends on, besides the elements of its tensors. Two steps with
/// equal keys launch the same work.
class StepKey {
 public:
  bool operator==(const StepKey& other) const { return words_ == other.words_; }
  uint64_t checksum() const;

 private:
  friend class StepKeyBuilder;
  std::vector<int64_t> words_;
  std::vector<c10::IValue> held_;  // opaque leaves, so that no other leaf gets their address
};

/// The key of a step, or why the step cannot be captured.
struct KeyOrReason {
  std::optional<StepKey> key = std::nullopt;
  std::string reason = {};
};

/// The key of a step: shapes, dtypes, devices and structure of the batch; values that are not
/// tensors; weights, options of the step; autocast of this thread; addresses of the parameters and
/// buffers, and of the gradients that exist. `stages`: of all ranks that the graph is for.
/// `shapes`: of the batches of other processes.
KeyOrReason key_of(const StepPlan& plan, const std::vector<const Stage*>& stages,
                   uint64_t shapes = 0);

/// A checksum of the parts of the key that come from the batch and the options of a step, for other
/// processes.
uint64_t checksum_of_shapes(const Microbatches& batch, const StepOptions& options);

}  // namespace stagecraft::detail
