#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "stagecraft/base/index.h"

namespace stagecraft {

/// What a transfer carries.
enum class Direction : uint8_t {
  kForward,   ///< values, from the stage that makes them to one that reads them
  kBackward,  ///< their gradients, the other way
  kResult,    ///< losses and outputs, to a rank that asked for them
  /// gradients of a weight of which several stages hold a copy; its number is the microbatch
  kTiedWeight,
  /// gradients of a stage, to the same stage of another replica, or their sums (microbatch 1)
  kReplica,
};

/// What a transfer is, not when it happens: the two ends name the same identity and find each
/// other, whatever else is under way between them. It is the pair of stages that makes it unique:
/// all that one stage makes for another travels together.
struct TransferId {
  uint64_t step = 0;  ///< so that nothing left over from an earlier step is taken for this one's
  Direction direction = Direction::kForward;
  StageId from;  ///< the stage whose action made what is carried
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
