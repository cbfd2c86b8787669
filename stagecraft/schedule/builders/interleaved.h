#pragma once

#include <cstdint>
#include <vector>

#include "stagecraft/schedule/builders/builders.h"

namespace stagecraft::builders {

/// The order of the stages in interleaved schedules. The microbatches come in rounds, and a round
/// passes through all stages of a rank before the next round starts.
///
///   p = 2, l = 2, m = 4, rank 0     forward   0F0 0F1 2F0 2F1 | 0F2 0F3 2F2 2F3
///                                   backward  2B0 2B1 0B0 0B1 | 2B2 2B3 0B2 0B3
///
/// A round has as many microbatches as there are ranks, or somewhat more: m / p rounds share the
/// microbatches as evenly as possible, larger rounds first.
class InterleavedOrder {
 public:
  struct Step {
    int32_t chunk = 0;  ///< which of the rank's stages, in the order of the forward pass
    int32_t microbatch = 0;
  };

  explicit InterleavedOrder(const Dims& dims);

  /// The l * m steps, the same for every rank. In the backward, the stages of each round are passed
  /// in reverse.
  Step forward(int64_t op) const { return steps_[op]; }
  Step backward(int64_t op) const { return {l_ - 1 - steps_[op].chunk, steps_[op].microbatch}; }
  /// The number of microbatches of the first round.
  int32_t round_size() const { return round_size_; }

 private:
  int32_t l_;
  int32_t round_size_;
  std::vector<Step> steps_;
};

}  // namespace stagecraft::builders
