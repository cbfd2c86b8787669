#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/tree/arguments.h"

namespace stagecraft {

/// Tensors and their names, in order.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// What a stage computes and what it trains. `stage_body(...)` of callable.h makes one of a module
/// or of a function with ordinary parameters.
struct StageBody {
  /// The stage's output: one value, or a tuple or list of them, each of which is an output that
  /// other stages can read. Runs on the thread of the stage's rank, once for each microbatch.
  std::function<c10::IValue(const Args& args, const Kwargs& kwargs)> forward;
  /// Those that the stage trains. Gradients reach what forward uses, whether it is named here or
  /// not; names are for reports, memory estimates and weights that are tied between stages.
  NamedTensors parameters = {};
  NamedTensors buffers = {};
};

}  // namespace stagecraft
