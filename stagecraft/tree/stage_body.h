#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/tree/arguments.h"
#include "stagecraft/tree/own_backward.h"

namespace stagecraft {

/// Tensors and their names, in order.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// The computation of a stage, or of a model that is captured, and the tensors that it trains.
/// `stage_body(...)` of stage/callable.h makes one from a module or from a function with ordinary
/// parameters.
struct StageBody {
  /// Returns the output: one value, or a tuple or list of values. Each value of a tuple or list is
  /// an output that other stages can read. A stage calls it on the thread of its rank, once for
  /// each microbatch.
  std::function<c10::IValue(const Args& args, const Kwargs& kwargs)> forward;
  /// The parameters that the stage trains. A tensor may have several names. Gradients also reach
  /// tensors that forward uses and that have no name here. The names are for reports, memory
  /// estimates, capture, and weights that are tied between stages.
  NamedTensors parameters = {};
  NamedTensors buffers = {};
  /// Whether a weight that autocast casts in one forward may serve the next forwards of the step,
  /// so that it is cast once. Must be false if forward changes weights, or casts them without
  /// gradients.
  bool shares_casts = false;
  /// Set if forward computes the gradients of its parameters outside autograd. It takes precedence
  /// over StageOptions::weight_work.
  std::shared_ptr<OwnBackward> own_backward = nullptr;
};

}  // namespace stagecraft
