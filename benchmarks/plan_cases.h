#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/plan/schedule_problem.h"

namespace stagecraft::bench {

/// A problem whose bound is known, with the value that a search has to reach.
struct PlanCase {
  std::string name;
  ScheduleProblem problem;
  double bound = 0;      ///< 0: not stated
  double goal = 0;       ///< the objective must not be above it; 0: not stated
  double published = 0;  ///< the bubble of the zero-bubble papers, 0: none
};

/// The zero-bubble papers' costs: "1.5B", "6.2B", "14.6B" or "28.3B" by name of the memory; times
/// in microseconds; `cap` in units of 1F1B's memory.
struct PaperSetting {
  std::string_view model;
  int32_t ranks = 1;
  int32_t microbatches = 1;
  int32_t stages_per_rank = 1;  ///< 2: a V
  double f = 0;
  double b = 0;
  double w = 0;
  double latency = 0;
};
ScheduleProblem paper_problem(const PaperSetting& setting, double cap, Objective objective);

/// Unit costs in a V of `ranks` ranks, 3 * ranks microbatches, memory for k activations of both
/// stages.
ScheduleProblem unit_problem(int32_t ranks, int32_t k);

/// A random problem with stages that differ, from a seed.
struct FamilyH {
  int32_t ranks = 1;
  int32_t stages_per_rank = 1;
  std::string_view placement = "loop";
  int32_t microbatches = 1;
  uint64_t seed = 1;
  double spread = 0;
  double cap = 1;
};
ScheduleProblem family_h(const FamilyH& h);
std::string to_string(const FamilyH& h);

/// The tables: one stage a rank, V, unit costs, step, named ones of family H, 48 of family H.
std::vector<PlanCase> single_stage_cases();
std::vector<PlanCase> v_cases();
std::vector<PlanCase> unit_cases();
std::vector<PlanCase> step_cases();
std::vector<PlanCase> named_h_cases();
std::vector<PlanCase> many_h_cases();

}  // namespace stagecraft::bench
