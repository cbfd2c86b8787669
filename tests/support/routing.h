#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/stage/ports.h"
#include "stagecraft/tree/arguments.h"

namespace stagecraft {

/// Where an argument of a stage came from.
struct ArgumentSource {
  int32_t stage = -1;  ///< -1: an argument of the model
  std::size_t output = 0;
};

struct RoutedArguments {
  Arguments arguments;
  std::vector<ArgumentSource> sources;  ///< of args, then kwargs
  /// Which of these, first those connected by hand in the order of Ports, then what the chain
  /// brings.
  std::vector<std::size_t> order;
};

/// What Ports promise, in a few plain lines: the arguments of a stage for one microbatch, given the
/// outputs of all earlier stages.
RoutedArguments route(const Ports& ports, StageId to,
                      const std::vector<std::vector<c10::IValue>>& outputs, const Arguments& model);

}  // namespace stagecraft
