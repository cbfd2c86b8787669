#pragma once

#include <string>
#include <vector>

#include "stagecraft/base/index.h"

namespace stagecraft {

/// A parameter of a stage, by its name in StageBody::parameters.
struct ParameterRef {
  StageId stage;
  std::string name;
};

/// One weight of which several stages hold a copy. They have to start out equal; then they stay so:
/// at the end of every step the gradients that the step gave to the copies are added up, last stage
/// first, and each copy gets the sum.
using TiedWeight = std::vector<ParameterRef>;

}  // namespace stagecraft
