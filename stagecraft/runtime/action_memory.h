#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "stagecraft/schedule/action.h"

namespace stagecraft {

/// What one action did to its rank's tensor memory, in bytes.
struct ActionMemory {
  bool is_measured = false;
  int64_t change = 0;  ///< from its begin to its end
  int64_t peak = 0;    ///< the most above its begin
};

/// What the actions of a stage do, measured on one microbatch.
struct StageMemory {
  StageId stage;
  int64_t parameters = 0;  ///< bytes of the stage's parameters
  int64_t gradients = 0;   ///< bytes of those that get one
  /// By type, those of has_microbatch: what is sent leaves the rank, what is received comes with F
  /// and B.
  std::array<ActionMemory, kMicrobatchTypes> actions;

  ActionMemory& of(ActionType type) { return actions[static_cast<std::size_t>(type)]; }
  const ActionMemory& of(ActionType type) const { return actions[static_cast<std::size_t>(type)]; }
};

}  // namespace stagecraft
