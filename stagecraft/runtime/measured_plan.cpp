#include "stagecraft/runtime/measured_plan.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <utility>

#include "stagecraft/base/check.h"
#include "stagecraft/base/error.h"
#include "stagecraft/plan/correct_layers.h"
#include "stagecraft/plan/evaluate_schedule.h"
#include "stagecraft/plan/synthesise.h"
#include "stagecraft/runtime/measure_link.h"
#include "stagecraft/runtime/measure_run.h"

namespace stagecraft {
namespace {

/// If the prediction differs from the measured time by a larger share, the split is searched again.
constexpr double kAcceptedError = 0.03;
/// A schedule without a name of its own must be better than a built-in one by this share.
constexpr double kClearlyBetter = 0.005;

std::vector<std::string> split_points(const PlanChoice& choice,
                                      const std::vector<std::string>& layers) {
  std::vector<std::string> points;
  for (std::size_t s = 1; s < choice.begins.size(); ++s) {
    points.push_back(layers[static_cast<std::size_t>(choice.begins[s]) - 1]);
  }
  return points;
}

/// A plan that was run.
struct Trial {
  SavedPlan plan;  // with the costs of its stages as they ran
  MeasuredRun run;
};

/// Adds the memory that a rank held beyond the prediction to its layers, so that the next plan
/// includes it.
void add_unexplained_memory(PlanProblem& problem, const PlanChoice& choice,
                            const std::vector<double>& predicted,
                            const std::vector<double>& measured) {
  const Placement placement = place_stages(choice, problem.num_ranks());
  std::vector<double> layers_of(predicted.size(), 0.0);
  const auto each_layer = [&](auto&& body) {
    std::size_t stage = 0;
    for (std::size_t l = 0; l < problem.layers.size(); ++l) {
      const bool is_next = stage + 1 < choice.begins.size() &&
                           l == static_cast<std::size_t>(choice.begins[stage + 1]);
      stage += is_next ? 1 : 0;
      body(problem.layers[l], placement.get_rank(StageId(static_cast<int32_t>(stage))).position());
    }
  };
  each_layer([&](PlanLayer&, std::size_t rank) { layers_of[rank] += 1; });
  each_layer([&](PlanLayer& layer, std::size_t rank) {
    layer.state += std::max(0.0, measured[rank] - predicted[rank]) / layers_of[rank];
  });
}

class MeasuredPlanner {
 public:
  MeasuredPlanner(const ModelToPlan& model, PlanProblem problem, const MeasuredPlanOptions& options)
      : model_(model), problem_(std::move(problem)), options_(options) {}

  MeasuredPlan run() {
    measure_model();
    share([&] { return first_plan(); });
    // A run of the plan would hold whole replicas, so a sharded plan could not be compared with it.
    if (problem_.sharding.replicas > 1) return std::move(result_);
    for (;;) {
      trials_.push_back(try_plan());
      const Trial& last = trials_.back();
      result_.trials.push_back({result_.saved.predicted, last.run.step});
      share([&] { return next_plan(); });
      if (is_final_) return std::move(result_);
    }
  }

 private:
  bool is_first_rank() const {
    return options_.transport == nullptr || options_.transport->rank() == Rank(0);
  }

  void measure_model() {
    MeasureOptions how = options_.measure;
    // Each process measures all layers, at the same time as the others.
    how.ranks =
        options_.transport == nullptr ? problem_.num_ranks() * problem_.sharding.replicas : 1;
    problem_.layers =
        measure_layers(model_.split(model_.layers), model_.loss, model_.batch, model_.layers, how);
    std::vector<int64_t> sizes;
    for (std::size_t l = 0; l + 1 < problem_.layers.size(); ++l) {
      sizes.push_back(static_cast<int64_t>(problem_.layers[l].output_bytes));
    }
    problem_.link =
        options_.transport == nullptr
            ? measure_local_link(problem_.num_ranks(), sizes)
            : measure_link(*options_.transport, sizes, Deadline::after(std::chrono::minutes(2)));
    estimate_gathers();
  }

  /// A replica sends its piece to all others, and receives theirs. Latency is not counted: a stage
  /// is gathered as one.
  void estimate_gathers() {
    if (!problem_.sharding.has_gathers()) return;
    const double others = problem_.sharding.replicas - 1;
    const std::optional<double> bandwidth = problem_.link.bandwidth;
    for (PlanLayer& layer : problem_.layers) {
      const double gathered = held_memory(layer, problem_.sharding).gathered;
      layer.gather = bandwidth ? gathered * others / (others + 1) / *bandwidth : 0;
    }
  }

  SavedPlan search(const PlanProblem& problem) {
    result_.search = make_plan(problem, options_.search);
    return save(*result_.search);
  }

  SavedPlan save(const Plan& plan) const {
    return to_saved(plan, {.graph = model_.graph,
                           .split_points = split_points(plan.best.choice, model_.layers)});
  }

  SavedPlan first_plan() { return search(problem_); }

  /// Runs the current plan. The costs of its stages become those of its problem.
  Trial try_plan() const {
    MeasureOptions how = options_.measure;
    const Pipe pipe = model_.split(result_.saved.model.split_points);
    Trial trial{result_.saved,
                measure_run(pipe, result_.saved.schedule, result_.saved.choice.recompute,
                            model_.loss, model_.batch, how, options_.transport)};
    SavedPlan& plan = trial.plan;
    plan.problem.layers = correct_layers(plan.problem, plan.choice, trial.run.stages);
    const Evaluation now =
        evaluate_schedule(StageComposer(plan.problem), plan.choice, plan.schedule);
    add_unexplained_memory(plan.problem, plan.choice, now.peaks, trial.run.peaks);
    predict(plan);
    return trial;
  }

  /// Predicts the plan's schedule from the plan's own costs. False if it does not fit into memory.
  static bool predict(SavedPlan& plan) {
    const Evaluation now =
        evaluate_schedule(StageComposer(plan.problem), plan.choice, plan.schedule);
    plan.predicted = now.makespan;
    plan.peaks = now.peaks;
    return now.fits;
  }

  bool is_cancelled() const {
    return options_.search.cancel != nullptr && options_.search.cancel->load();
  }

  /// After a trial: the plan to try next, or the final one.
  SavedPlan next_plan() {
    const Trial& last = trials_.back();
    SavedPlan current = last.plan;
    const bool fits = predict(current);
    const double error = std::abs(result_.saved.predicted / last.run.step - 1);
    if (trials_.size() == 1 && !is_cancelled() && (error > kAcceptedError || !fits)) {
      SavedPlan other = search(current.problem);
      const bool is_other = other.choice != current.choice;
      if (is_other && (!fits || other.predicted < current.predicted * (1 - kClearlyBetter))) {
        return other;
      }
    }
    is_final_ = true;
    return final_plan();
  }

  SavedPlan final_plan() {
    const Trial* best = nullptr;
    for (const Trial& trial : trials_) {
      SavedPlan plan = trial.plan;
      if (!predict(plan)) continue;
      if (best == nullptr || trial.run.step < best->run.step) best = &trial;
    }
    // No plan that ran fits into memory: search for one that does.
    if (best == nullptr) return search(trials_.back().plan.problem);
    SavedPlan plan = best->plan;
    order_again(plan);
    return plan;
  }

  void order_again(SavedPlan& plan) const {
    const StageComposer composer(plan.problem);
    const bool is_built_in = plan.schedule_name != "synthesised";
    predict(plan);
    PlanChoice apart = plan.choice;
    apart.whole_backward = false;
    SynthesisOptions how;
    how.time_limit = std::chrono::seconds(1);
    how.rounds = options_.search.rounds;
    how.seed = options_.search.seed;
    how.cancel = options_.search.cancel;
    const Synthesis found = synthesise(composer.compose(apart), how);
    plan.bound = tight_bound(composer.compose(plan.choice)).value;
    if (found.schedule) {
      const Evaluation again = evaluate_schedule(composer, apart, *found.schedule);
      const double needed = is_built_in ? 1 - kClearlyBetter : 1;
      if (again.fits && again.makespan < needed * plan.predicted) {
        plan.choice = apart;
        plan.schedule = *found.schedule;
        plan.schedule_name = "synthesised";
        plan.bound = found.bound.value;
        predict(plan);
      }
    }
    plan.bound = std::min(plan.bound, plan.predicted);
    plan.any_split_bound = std::min(plan.any_split_bound, plan.bound);
  }

  /// Rank 0 makes a plan, and all ranks get it. If it fails there, all ranks throw.
  template <typename Make>
  void share(Make&& make) {
    Transport* const transport = options_.transport;
    if (transport == nullptr) {
      result_.saved = make();
      return;
    }
    std::string text;
    std::string failure;
    std::exception_ptr error;
    if (is_first_rank()) {
      try {
        text = to_plan_file(make());
      } catch (...) {
        // Any failure, or the other ranks would wait for a plan that does not come.
        error = std::current_exception();
        failure = describe(error);
      }
    }
    // The other ranks may have to wait for a whole search.
    const c10::IValue shared = transport->broadcast(
        c10::ivalue::Tuple::create(
            {c10::IValue(text), c10::IValue(failure), c10::IValue(is_final_)}),
        Rank(0), Deadline::after(options_.search.time_limit + std::chrono::hours(1)));
    const auto& parts = shared.toTupleRef().elements();
    if (error) std::rethrow_exception(error);
    if (!parts[1].toStringRef().empty()) throw DoesNotFit({parts[1].toStringRef()});
    is_final_ = parts[2].toBool();
    result_.saved = parse_plan_file(parts[0].toStringRef());
  }

  const ModelToPlan& model_;
  PlanProblem problem_;
  const MeasuredPlanOptions& options_;
  std::vector<Trial> trials_;
  MeasuredPlan result_ = {
      .saved = {.problem = {},
                .choice = {},
                .schedule_name = {},
                .schedule = Schedule(Level::kCompute, Placement::loop(1, 1), {ActionList()})}};
  bool is_final_ = false;
};

}  // namespace

MeasuredPlan plan_measured(const ModelToPlan& model, PlanProblem problem,
                           const MeasuredPlanOptions& options) {
  require<ArgumentError>(!model.batch.inputs.empty(),
                         "planning a model needs at least one microbatch");
  return MeasuredPlanner(model, std::move(problem), options).run();
}

}  // namespace stagecraft
