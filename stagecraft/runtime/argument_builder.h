#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/stage/ports.h"
#include "stagecraft/tree/arguments.h"

namespace stagecraft {

/// Where an argument came from: a value of one of the stage's edges, or the model's inputs.
struct ArgumentOrigin {
  int32_t edge = -1;  ///< -1: the model's
  int32_t item = 0;   ///< which of the edge's values
};

/// Puts the arguments of a stage together: first those with a place of their own, then the others,
/// in order, at the positions that are left.
class ArgumentBuilder {
 public:
  void place(const InputPort& to, const c10::IValue& value, ArgumentOrigin origin);
  void append(const c10::IValue& value, ArgumentOrigin origin);
  void set(const std::string& name, const c10::IValue& value, ArgumentOrigin origin);

  /// The origins of args, then of kwargs. ArgumentError when a position before the last is empty.
  Arguments finish(StageId stage, std::vector<ArgumentOrigin>& origins);

 private:
  Arguments arguments_;
  std::vector<bool> is_placed_;  // positions that are taken; those behind its end are
  std::vector<ArgumentOrigin> origins_;
  std::vector<ArgumentOrigin> named_origins_;
  std::size_t next_ = 0;
};

}  // namespace stagecraft
