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

/// One weight with copies in several stages. The copies must be equal at the start, and then stay
/// equal: at the end of every step their gradients of the step are summed, last stage first, and
/// each copy gets the sum.
using TiedWeight = std::vector<ParameterRef>;

}  // namespace stagecraft
