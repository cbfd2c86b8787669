#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "stagecraft/base/index.h"

namespace stagecraft {

/// What a transfer carries.
enum class Direction : uint8_t {
  kForward,   ///< values, from the stage that computes them to a stage that reads them
  kBackward,  ///< gradients of the values, in the opposite direction
  kResult,    ///< losses and outputs, to a rank that asked for them
  /// gradients of a tied weight; the microbatch is the number of the weight
  kTiedWeight,
  /// gradients of a stage to the same stage of a different replica, or their sums (microbatch 1)
  kReplica,
  /// a piece of the weights of a stage, to the same stage of a different replica. `to` is the
  /// number of the unit, the microbatch the number of the chunk
  kWeights,
  /// gradients of a stage to the replica that owns their piece, numbered as for kWeights
  kGradPieces,
};

/// The identity of a transfer. Sender and receiver name the same identity and are matched by it,
/// whatever else is in flight between them. All values that one stage produces for a different
/// stage travel together, so the pair of stages identifies them.
struct TransferId {
  uint64_t step = 0;  ///< keeps transfers of different steps apart
  Direction direction = Direction::kForward;
  StageId from;  ///< the stage whose action produced the values
  StageId to;
  MicrobatchId microbatch;

  friend bool operator==(const TransferId&, const TransferId&) = default;
};

/// "values of stage 0 for stage 1, microbatch 3, step 7".
std::string to_string(const TransferId& id);

}  // namespace stagecraft

template <>
struct std::hash<stagecraft::TransferId> {
  std::size_t operator()(const stagecraft::TransferId& id) const noexcept {
    uint64_t h = id.step * 0x9E3779B97F4A7C15U + static_cast<uint64_t>(id.direction);
    h = (h ^ static_cast<uint32_t>(id.from.value())) * 0xBF58476D1CE4E5B9U;
    h = (h ^ static_cast<uint32_t>(id.to.value())) * 0x94D049BB133111EBU;
    h = (h ^ static_cast<uint32_t>(id.microbatch.value())) * 0x9E3779B97F4A7C15U;
    return static_cast<std::size_t>(h ^ (h >> 29U));
  }
};
