#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "stagecraft/partition/pipe.h"
#include "stagecraft/plan/make_plan.h"
#include "stagecraft/plan/plan_file.h"
#include "stagecraft/runtime/loss.h"
#include "stagecraft/runtime/measure_layers.h"
#include "stagecraft/runtime/step.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// A model that can be split and run here.
struct ModelToPlan {
  /// The model, split at the beginnings of these modules. Its gradients and buffers are changed, so
  /// it should not be the one that is trained.
  std::function<Pipe(const std::vector<std::string>& names)> split;
  /// Names of the layers but the first: those of layer_names.
  std::vector<std::string> layers = {};
  Loss loss;
  /// As many microbatches as are planned, or fewer, which are then used again.
  Microbatches batch = {};
  std::string graph = {};  ///< checksum, for the plan file
};

/// How plan_measured measures and searches.
struct MeasuredPlanOptions {
  PlanOptions search = {};
  /// `ranks` is set by the problem. The other options also apply to runs of a plan.
  MeasureOptions measure = {};
  /// The transport of this rank. All ranks of its world call plan_measured and get the same plan.
  /// Null: ranks are threads of this process.
  Transport* transport = nullptr;
};

/// A plan from measured costs.
struct MeasuredPlan {
  /// Its problem has the layers with the costs of the planned stages; the same on every rank.
  SavedPlan saved;
  /// The last search for a split, with its table, on rank 0.
  std::optional<Plan> search = std::nullopt;
  /// A plan that was run: the predicted and the measured time of a step, in milliseconds.
  struct Trial {
    double predicted = 0;
    double measured = 0;
  };
  std::vector<Trial> trials = {};
};

/// Measures the layers of a model and what a transfer takes, plans, runs the plan for a few steps,
/// and searches for the order of its actions again, with the costs of the stages as they ran. If
/// the step took more than 3 % more or less than predicted, or a rank more memory than it has, the
/// split is searched once more with these costs, and the plan whose steps are faster is taken.
///
/// With replicas (PlanProblem::sharding), the world has the ranks of all of them, the time of
/// gathers is estimated from that of transfers, and the plan is not run.
///
/// `problem` has ranks, microbatches and whatever else is given; layers and link are filled in.
/// Throws what make_plan throws, DoesNotFit on all ranks, and what Pipeline::step throws.
MeasuredPlan plan_measured(const ModelToPlan& model, PlanProblem problem,
                           const MeasuredPlanOptions& options = {});

}  // namespace stagecraft
