#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "stagecraft/plan/make_plan.h"

namespace stagecraft {

/// A plan as text: the model and its even share, the table of ways to run it (the chosen one with a
/// star), those that do not fit, the stages, and the arguments of the bounds.
std::string to_text(const Plan& plan, std::size_t rows = 8);

/// The parts of it. Each ends with a line end; empty if there is nothing to say.
std::string plan_headline(const Plan& plan);
std::string plan_table(const Plan& plan, std::size_t rows = 8);
std::string plan_unfit(const Plan& plan);
std::string plan_stages(const Plan& plan);
std::string plan_bounds(const Plan& plan);

/// A sentence about the gain of more memory and about the least memory, or a table of the curve.
std::string curve_sentence(const Plan& plan, const std::vector<CurvePoint>& curve);
std::string curve_table(const Plan& plan, const std::vector<CurvePoint>& curve);

/// A time of the problem as text, with its unit if it has one: "12406", "646 ms".
std::string format_time(const PlanProblem& problem, double time);

/// The rows and columns of the texts, for other forms of output.
struct PlanTable {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
};
PlanTable plan_rows(const Plan& plan, std::size_t rows);
PlanTable stage_rows(const Plan& plan);

}  // namespace stagecraft
