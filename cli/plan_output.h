#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stagecraft/plan/make_plan.h"

namespace stagecraft::cli {

/// Everything about a plan as JSON.
std::string plan_json(const Plan& plan, const std::vector<CurvePoint>& curve);

/// The drawing of the plan's schedule for a terminal of that width. Without a width: for the
/// terminal of standard output.
std::string draw_plan(const Plan& plan, std::optional<int32_t> width);

/// A page: the timeline, the table, the stages, the bounds and the curve.
std::string plan_page(const Plan& plan, const std::vector<CurvePoint>& curve);

}  // namespace stagecraft::cli
