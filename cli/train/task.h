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

/// A model to train, split, and its relation to rows of data.
struct Task {
  Pipe pipe;
  std::optional<Pipe> evaluation = std::nullopt;  ///< without dropout, if the model has any
  std::function<Arguments(const NamedTensors& rows)> arguments;
  std::function<c10::IValue(const NamedTensors& rows)> target;
  Loss loss;
  /// The logits [rows, length, tokens] in the model's output, if it has any.
  std::function<at::Tensor(const c10::IValue& output)> logits = {};
  bool can_sample = false;   ///< the model has logits, and takes rows of any length
  int64_t least_rows = 1;    ///< of a microbatch
  int64_t least_length = 1;  ///< of a row
};

/// The rows with that name. REQUIRES that they exist.
const at::Tensor& rows_named(const NamedTensors& rows, const std::string& name);

}  // namespace stagecraft::cli
