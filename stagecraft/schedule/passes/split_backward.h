#pragma once

#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// Replaces each B by an I and, directly after it, a W, so that the gradients of the inputs can be
/// sent before those of the parameters are computed. A B inside an overlap becomes an I there; its
/// W follows the overlap. Keeps idle slots.
///
/// ArgumentError unless the level is kCompute.
Schedule split_backward(const Schedule& schedule);

}  // namespace stagecraft
