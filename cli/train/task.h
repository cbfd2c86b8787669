#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include <ATen/core/ivalue.h>

#include "stagecraft/partition/pipe.h"
#include "stagecraft/runtime/loss.h"
#include "stagecraft/tree/arguments.h"
#include "stagecraft/tree/stage_body.h"

namespace stagecraft::cli {

/// A model to train, cut, and what it has to do with rows of data.
struct Task {
  Pipe pipe;
  std::optional<Pipe> evaluation = std::nullopt;  ///< without dropout, where that differs
  std::function<Arguments(const NamedTensors& rows)> arguments;
  std::function<c10::IValue(const NamedTensors& rows)> target;
  Loss loss;
  /// From what the model gives to logits [rows, length, tokens], where it gives them.
  std::function<at::Tensor(const c10::IValue& output)> logits = {};
  bool can_sample = false;   ///< it has logits, and takes rows of any length
  int64_t least_rows = 1;    ///< of a microbatch
  int64_t least_length = 1;  ///< of a row
};

/// The rows of that name. Requires that there are.
const at::Tensor& rows_named(const NamedTensors& rows, const std::string& name);

}  // namespace stagecraft::cli
