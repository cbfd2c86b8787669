#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "stagecraft/schedule/action.h"

namespace stagecraft {

/// How one action changed the tensor memory of its rank, in bytes.
struct ActionMemory {
  bool is_measured = false;
  int64_t change = 0;  ///< from its begin to its end
  int64_t peak = 0;    ///< maximum during the action, relative to its begin
};

/// The memory of a stage's actions, measured on one microbatch.
struct StageMemory {
  StageId stage;
  int64_t parameters = 0;  ///< bytes of the stage's parameters
  int64_t gradients = 0;   ///< bytes of the gradients of parameters that get one
  /// By type, for types with a microbatch. A sent value leaves the rank with its send; a received
  /// value counts for the F or B that takes it.
  std::array<ActionMemory, kMicrobatchTypes> actions;

  ActionMemory& of(ActionType type) { return actions[static_cast<std::size_t>(type)]; }
  const ActionMemory& of(ActionType type) const { return actions[static_cast<std::size_t>(type)]; }
};

}  // namespace stagecraft
