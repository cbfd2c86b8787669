#pragma once

#include <optional>
#include <span>
#include <vector>

#include "stagecraft/plan/plan_choice.h"
#include "stagecraft/plan/plan_problem.h"

namespace stagecraft {

/// Measured times and memory of the actions of one stage, for a microbatch of size 1 on a rank of
/// speed 1. Actions that did not run have no value.
struct MeasuredStage {
  std::optional<double> forward = std::nullopt;
  std::optional<double> backward_input = std::nullopt;
  std::optional<double> backward_weight = std::nullopt;
  std::optional<double> backward = std::nullopt;  ///< with the second forward, if it recomputes

  /// Memory held after F and after I, as in StageLoad.
  std::optional<double> memory_forward = std::nullopt;
  std::optional<double> memory_input = std::nullopt;
  std::optional<double> peak_forward = std::nullopt;
  std::optional<double> peak_input = std::nullopt;  ///< the peak of I or B
  std::optional<double> peak_weight = std::nullopt;
};

/// A stage takes more or less than the sum of its layers. Scales the costs of the layers of each
/// stage, so that the stages of `choice` that StageComposer makes of them have the measured times
/// and memory. A cost that was not measured is scaled with the nearest measured one: the full
/// backward with I and W, and the reverse. The memory and peaks of a stage that recomputes are not
/// changed.
///
/// REQUIRES a checked problem, a choice for it, and a measured stage for each stage of the choice.
std::vector<PlanLayer> correct_layers(const PlanProblem& problem, const PlanChoice& choice,
                                      std::span<const MeasuredStage> stages);

}  // namespace stagecraft
