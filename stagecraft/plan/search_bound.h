#pragma once

#include "stagecraft/plan/bound.h"
#include "stagecraft/plan/instance.h"

namespace stagecraft::plan {

/// lower_bound and tight_bound of an existing instance.
Bound lower_bound(const Instance& in);
Bound tight_bound(const Instance& in);

}  // namespace stagecraft::plan
