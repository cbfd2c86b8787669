#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "stagecraft/plan/make_plan.h"

namespace stagecraft {
namespace {

CurvePoint curve_point(double memory, const Plan& plan) {
  const std::vector<bool>& recompute = plan.best.choice.recompute;
  return {.memory = memory,
          .value = plan.best.value,
          .bound = plan.best.bound.value,
          .schedule = plan.best.schedule,
          .stages_per_rank = plan.best.choice.stages_per_rank,
          .recomputed = static_cast<int32_t>(std::count(recompute.begin(), recompute.end(), true))};
}

PlanProblem with_memory(const PlanProblem& problem, std::optional<double> memory) {
  PlanProblem changed = problem;
  for (PlanRank& rank : changed.ranks) rank.memory = memory;
  return changed;
}

}  // namespace

std::vector<CurvePoint> memory_curve(const PlanProblem& problem, const PlanOptions& options,
                                     std::size_t points) {
  check_problem(problem);
  points = std::max<std::size_t>(points, 2);
  PlanOptions each = options;
  each.time_limit = options.time_limit / static_cast<int64_t>(points);
  each.progress = {};
  std::vector<CurvePoint> curve;
  const Plan free = make_plan(with_memory(problem, std::nullopt), each);
  const double most =
      *std::max_element(free.best.result.peaks.begin(), free.best.result.peaks.end());
  const PlanProblem unlimited = with_memory(problem, std::nullopt);
  const std::optional<LeastMemory> least =
      least_memory(StageComposer(unlimited, options.objective), options.space);
  if (least && least->memory < most) {
    const auto steps = static_cast<double>(points - 1);
    for (std::size_t i = 0; i + 1 < points; ++i) {
      if (options.cancel != nullptr && options.cancel->load()) break;
      // A tolerance is added to the least memory, because its sum is rounded.
      const double memory =
          i == 0 ? least->memory * (1 + 1e-9)
                 : least->memory * std::pow(most / least->memory, static_cast<double>(i) / steps);
      try {
        curve.push_back(curve_point(memory, make_plan(with_memory(problem, memory), each)));
      } catch (const DoesNotFit&) {
        continue;
      }
    }
  }
  curve.push_back(curve_point(most, free));
  // A plan for less memory also fits into more memory, so it replaces a slower plan.
  for (std::size_t i = 1; i < curve.size(); ++i) {
    if (curve[i].value <= curve[i - 1].value) continue;
    const double memory = curve[i].memory;
    curve[i] = curve[i - 1];
    curve[i].memory = memory;
  }
  return curve;
}

}  // namespace stagecraft
