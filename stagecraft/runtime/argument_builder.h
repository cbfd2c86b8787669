#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/stage/ports.h"
#include "stagecraft/tree/arguments.h"

namespace stagecraft {

/// The origin of an argument: a value of one of the stage's edges, or an input of the model.
struct ArgumentOrigin {
  int32_t edge = -1;  ///< -1: an input of the model
  int32_t item = 0;   ///< index of the value in the edge
};

/// Builds the arguments of a stage. Values with a position of their own are placed first. All
/// others are appended in order, at the remaining positions.
class ArgumentBuilder {
 public:
  void place(const InputPort& to, const c10::IValue& value, ArgumentOrigin origin);
  void append(const c10::IValue& value, ArgumentOrigin origin);
  void set(const std::string& name, const c10::IValue& value, ArgumentOrigin origin);

  /// Sets `origins`: those of args, then those of kwargs. ArgumentError if a position before the
  /// last is empty.
  Arguments finish(StageId stage, std::vector<ArgumentOrigin>& origins);

 private:
  Arguments arguments_;
  std::vector<bool> is_placed_;  // by position; positions after the end are free
  std::vector<ArgumentOrigin> origins_;
  std::vector<ArgumentOrigin> named_origins_;
  std::size_t next_ = 0;
};

}  // namespace stagecraft
