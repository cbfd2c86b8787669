#pragma once

#include <span>
#include <string_view>

#include "stagecraft/sim/cost_model.h"

namespace stagecraft {

/// The short names of costs that texts and files share. A setter returns false for a key that is
/// not one of its own.
bool set_stage_cost(StageCost& cost, std::string_view key, double value);
bool set_link_cost(LinkCost& cost, std::string_view key, double value);
/// Sets one number for the whole model; the keys of stages and links are included.
bool set_cost(CostModel& costs, std::string_view key, double value);

/// "F, I (or B), W, ..." for messages.
std::string_view cost_key_list();

/// B means the same as I, and MB the same as MI.
std::string_view canonical_cost_key(std::string_view key);

}  // namespace stagecraft
