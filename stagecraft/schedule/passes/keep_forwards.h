#pragma once

#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// Keeps the forwards of a schedule, in their order on each rank, at level kCompute. The result
/// runs inference in the order of a training schedule. A forward inside an overlap stays as an
/// action of its own.
Schedule keep_forwards(const Schedule& schedule);

}  // namespace stagecraft
