#include "stagecraft/plan/make_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "stagecraft/base/check.h"
#include "stagecraft/base/text_table.h"
#include "stagecraft/plan/balance.h"
#include "stagecraft/plan/built_in_rows.h"
#include "stagecraft/plan/reorder.h"
#include "stagecraft/plan/synthesise.h"
#include "stagecraft/plan/unlimited.h"
#include "stagecraft/plan/unshard_choice.h"
#include "stagecraft/schedule/verify.h"

namespace stagecraft {
namespace {

using Clock = std::chrono::steady_clock;
/// A row with its schedule.
struct Found {
  PlanRow row;
  Schedule schedule;
};

void check_space(const PlanProblem& problem, const SearchSpace& space) {
  require<ArgumentError>(!space.stages_per_rank.empty(),
                         "a plan needs a number of stages a rank to try");
  require<ArgumentError>(!space.placements.empty(), "a plan needs a placement to try");
  int32_t least = std::numeric_limits<int32_t>::max();
  for (const int32_t stages : space.stages_per_rank) {
    require<ArgumentError>(stages > 0, "a rank has at least one stage, got {}", stages);
    least = std::min(least, stages);
  }
  const int64_t stages = static_cast<int64_t>(least) * problem.num_ranks();
  require<ArgumentError>(
      stages <= static_cast<int64_t>(problem.layers.size()),
      "{} ranks with {} a rank are {} stages, but the model has {} layers: every stage needs one",
      problem.num_ranks(), least == 1 ? "1 stage" : fmt::format("{} stages", least), stages,
      problem.layers.size());
}

VerifyOptions verify_options(const Plan& plan) {
  VerifyOptions options{.mode = VerifyMode::kTraining};
  if (plan.problem.sharding.has_gathers()) {
    options.max_active_stages = plan.best.choice.most_active();
  }
  return options;
}

// Compares by value, then memory, transfers and stages a rank.
bool is_better(const PlanRow& a, const PlanRow& b) {
  if (std::abs(a.value - b.value) > 1e-9 * std::max(a.value, b.value)) return a.value < b.value;
  const double peak_a = *std::max_element(a.result.peaks.begin(), a.result.peaks.end());
  const double peak_b = *std::max_element(b.result.peaks.begin(), b.result.peaks.end());
  if (std::abs(peak_a - peak_b) > 1e-9 * std::max(peak_a, peak_b)) return peak_a < peak_b;
  if (a.result.transfers != b.result.transfers) return a.result.transfers < b.result.transfers;
  return a.choice.stages_per_rank < b.choice.stages_per_rank;
}

class Planner {
 public:
  Planner(const PlanProblem& problem, const PlanOptions& options)
      : problem_(problem), options_(options), composer_(problem, options.objective) {
    limit_.cancel = options.cancel;
    if (!options.rounds) {
      limit_.deadline = began_ + std::chrono::duration_cast<Clock::duration>(options.time_limit);
    }
  }

  Plan run(std::vector<PlanCandidate> candidates) {
    const bool fits = std::any_of(candidates.begin(), candidates.end(),
                                  [](const PlanCandidate& one) { return one.fits; });
    // Whole gradients depend on the schedule, so a built-in one may fit.
    if (fits || problem_.sharding.has_gathers()) add_built_in(candidates);
    if (!fits && found_.empty()) {
      throw DoesNotFit(explain_unfit(composer_, options_.space, candidates.front().choice));
    }
    synthesise_first(candidates);
    synthesise_best(candidates);
    return finish();
  }

  /// Searches splits, with a part of the time. The searches for schedules need the rest.
  std::vector<PlanCandidate> search() const {
    SearchLimit part = limit_;
    if (part.deadline) {
      part.deadline =
          began_ + std::chrono::duration_cast<Clock::duration>(options_.time_limit * 0.45);
    }
    return search_splits(composer_, options_.space, part);
  }

  const StageComposer& composer() const { return composer_; }

 private:
  void add_built_in(const std::vector<PlanCandidate>& candidates) {
    BuiltInRows built_in =
        built_in_rows(composer_, options_.space, candidates, [&] { return limit_.reached(); });
    unfit_ = std::move(built_in.unfit);
    for (BuiltInRow& one : built_in.rows) {
      one.row.value = one.row.result.value(options_.objective);
      offer({std::move(one.row), std::move(one.schedule)});
    }
  }

  void offer(Found found) {
    found_.push_back(std::move(found));
    const std::size_t last = found_.size() - 1;
    if (last == 0 || is_better(found_[last].row, found_[best_].row)) set_best(last);
  }

  void set_best(std::size_t place) {
    best_ = place;
    const PlanRow& row = found_[place].row;
    if (options_.progress) {
      options_.progress({row.value, row.bound.value, seconds(), row.schedule});
    }
  }

  double best_value() const {
    if (found_.empty()) return plan::kUnlimited;
    return found_[best_].row.value;
  }

  double seconds() const { return std::chrono::duration<double>(Clock::now() - began_).count(); }

  /// Looks for a schedule of the candidate; true if there is one.
  bool synthesise_one(PlanCandidate& candidate, double share, double rounds_share) {
    SynthesisOptions how;
    how.seed = options_.seed;
    how.cancel = options_.cancel;
    if (options_.rounds) {
      how.rounds = std::max<int64_t>(
          1, static_cast<int64_t>(static_cast<double>(*options_.rounds) * rounds_share));
    } else {
      how.time_limit = std::chrono::nanoseconds(
          static_cast<int64_t>(1e9 * std::max(0.02, limit_.seconds_left() * share)));
    }
    const Synthesis found = synthesise(composer_.compose(candidate.choice), how);
    if (!found.schedule) return false;
    PlanRow row;
    row.choice = candidate.choice;
    row.bound = found.bound;
    row.schedule = "synthesised";
    UnshardedSchedule unsharded = add_unshards(composer_, row.choice, *found.schedule);
    if (!unsharded.result.fits) return false;
    row.result = std::move(unsharded.result);
    row.lookahead = std::move(unsharded.lookahead);
    row.value = row.result.value(options_.objective);
    // If the plan is optimal, bound and value are the same sum, rounded in a different order.
    if (row.bound.value <= row.value * (1 + 1e-9)) {
      row.bound.value = std::min(row.bound.value, row.value);
    }
    candidate.score = row.value;
    candidate.is_timed = true;
    // Of two rows with the same choice, the better one is kept.
    for (std::size_t i = 0; i < found_.size(); ++i) {
      Found& known = found_[i];
      if (known.row.built_in || known.row.choice != row.choice) continue;
      if (is_better(row, known.row)) {
        known = {std::move(row), std::move(unsharded.schedule)};
        // Better than itself before, if it was the best.
        if (i == best_ || is_better(known.row, found_[best_].row)) set_best(i);
      }
      return true;
    }
    offer({std::move(row), std::move(unsharded.schedule)});
    return true;
  }

  // A short search for each of the first candidates whose bound allows it to be the best.
  void synthesise_first(std::vector<PlanCandidate>& candidates) {
    constexpr int32_t kMost = 6;
    // Bounds do not include gathers, so they cannot compare different numbers of active stages. The
    // limit is therefore counted for each number.
    std::map<int32_t, int32_t> tried;
    for (PlanCandidate& one : candidates) {
      if (!one.fits || (!tried.empty() && limit_.reached())) break;
      if (tried[one.choice.active_stages] == kMost) continue;
      if (one.bound >= best_value() * (1 - 1e-9)) continue;
      synthesise_one(one, 0.07, 0.25);
      ++tried[one.choice.active_stages];
    }
  }

  // Most of the time is for the best candidate, the rest for the next two.
  void synthesise_best(std::vector<PlanCandidate>& candidates) {
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const PlanCandidate& a, const PlanCandidate& b) {
                       return a.fits != b.fits ? a.fits : a.score < b.score;
                     });
    double share = 0.65;
    std::size_t tried = 0;
    for (PlanCandidate& one : candidates) {
      if (tried == 3 || !one.fits || limit_.reached()) break;
      if (problem_.sharding.has_gathers() && !one.is_timed) continue;
      if (one.bound >= best_value() * (1 - 1e-9)) continue;
      if (one.score > best_value() * 1.03) break;
      synthesise_one(one, share, 1);
      share = tried == 0 ? 0.6 : 1;
      ++tried;
    }
  }

  // Chooses the best built-in schedule, unless a synthesised one is clearly better.
  std::size_t choose() const {
    std::size_t chosen = best_;
    if (found_[best_].row.built_in) return best_;
    bool any = false;
    for (std::size_t i = 0; i < found_.size(); ++i) {
      const PlanRow& row = found_[i].row;
      const bool close = row.value <= found_[best_].row.value * (1 + options_.prefer_built_in);
      if (!row.built_in || !close) continue;
      if (!any || is_better(row, found_[chosen].row)) chosen = i;
      any = true;
    }
    return chosen;
  }

  // Keeps the two best synthesised rows for each number of stages and placement.
  static void keep_two_splits(std::vector<PlanRow>& rows) {
    std::vector<PlanRow> kept;
    for (PlanRow& row : rows) {
      const auto alike = std::count_if(kept.begin(), kept.end(), [&](const PlanRow& other) {
        return !other.built_in && other.choice.stages_per_rank == row.choice.stages_per_rank &&
               other.choice.placement == row.choice.placement;
      });
      if (row.built_in || alike < 2) kept.push_back(std::move(row));
    }
    rows = std::move(kept);
  }

  // Names the second split with the same number of stages and placement "split 2".
  static void name_splits(std::vector<PlanRow>& rows) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (!rows[i].split.empty() || rows[i].built_in) continue;
      int32_t number = 1;
      for (std::size_t j = 0; j < i; ++j) {
        number += !rows[j].built_in &&
                  rows[j].choice.stages_per_rank == rows[i].choice.stages_per_rank &&
                  rows[j].choice.placement == rows[i].choice.placement;
      }
      if (number > 1) rows[i].split = fmt::format("split {}", number);
    }
  }

  // Gives the plan the smallest lookahead that costs no time.
  void unshard_later(Found& found) const {
    UnshardedSchedule least = with_least_lookahead(
        composer_, found.row.choice, {found.schedule, found.row.result, found.row.lookahead});
    found.schedule = std::move(least.schedule);
    found.row.result = std::move(least.result);
    found.row.lookahead = std::move(least.lookahead);
    found.row.value = found.row.result.value(options_.objective);
  }

  Plan finish() {
    const std::size_t chosen = choose();
    unshard_later(found_[chosen]);
    Plan plan{.problem = problem_,
              .objective = options_.objective,
              .best = found_[chosen].row,
              .schedule = found_[chosen].schedule,
              .any_split = {}};
    verify_or_throw(plan.schedule, StageGraph::chain(plan.schedule.num_stages()),
                    "the planned schedule cannot be run", verify_options(plan));
    require<ScheduleErrorOf>(plan.best.result.fits, "the planned schedule is over a rank's memory");
    for (const Found& one : found_) plan.rows.push_back(one.row);
    std::stable_sort(plan.rows.begin(), plan.rows.end(), is_better);
    keep_two_splits(plan.rows);
    name_splits(plan.rows);
    for (const PlanRow& row : plan.rows) {
      if (row.choice == plan.best.choice && row.schedule == plan.best.schedule) {
        plan.best.split = row.split;
      }
    }
    plan.any_split = bound_any_split(composer_, options_.space.stages_per_rank,
                                     options_.space.recompute != RecomputeChoice::kNone);
    plan.unfit = std::move(unfit_);
    plan.seed = options_.seed;
    plan.seconds = seconds();
    plan.interrupted = options_.cancel != nullptr && options_.cancel->load();
    return plan;
  }

  /// ScheduleError with the constructor that `require` needs.
  struct ScheduleErrorOf : ScheduleError {
    explicit ScheduleErrorOf(const std::string& message) : ScheduleError(message, {}) {}
  };

  const PlanProblem& problem_;
  const PlanOptions& options_;
  StageComposer composer_;
  Clock::time_point began_ = Clock::now();
  SearchLimit limit_;
  std::vector<Found> found_;
  std::size_t best_ = 0;
  std::vector<UnfitRow> unfit_;
};

Plan plan_in_order(const PlanProblem& problem, const PlanOptions& options, bool schedule_only) {
  Planner planner(problem, options);
  if (!schedule_only) return planner.run(planner.search());
  // Every layer is a stage: there is one split.
  std::vector<PlanCandidate> candidates;
  const int32_t per_rank = options.space.stages_per_rank.front();
  for (const PlacementStyle placement : options.space.placements) {
    if (per_rank == 1 && !candidates.empty()) break;
    PlanChoice choice{.stages_per_rank = per_rank, .placement = placement};
    choice.begins = equal_parts(static_cast<int32_t>(problem.layers.size()),
                                static_cast<int32_t>(problem.layers.size()));
    choice.recompute.assign(problem.layers.size(),
                            options.space.recompute == RecomputeChoice::kAll);
    candidates.push_back(rate(planner.composer(), std::move(choice)));
    candidates.back().score = candidates.back().bound;
  }
  return planner.run(std::move(candidates));
}

Plan plan_any_order(const PlanProblem& problem, const PlanOptions& options, bool schedule_only) {
  const bool uneven = std::any_of(problem.sizes.begin(), problem.sizes.end(),
                                  [&](double size) { return size != problem.sizes.front(); });
  if (!options.reorder || !uneven) return plan_in_order(problem, options, schedule_only);
  const auto began = Clock::now();
  PlanOptions first = options;
  first.time_limit = options.time_limit / 5;
  first.progress = {};
  Plan in_order = plan_in_order(problem, first, schedule_only);
  SearchLimit limit{.cancel = options.cancel};
  if (!options.rounds) {
    limit.deadline = began + std::chrono::duration_cast<Clock::duration>(options.time_limit / 2);
  }
  const std::vector<int32_t> order = order_microbatches(StageComposer(problem, options.objective),
                                                        in_order.best.choice, options.seed, limit);
  PlanProblem sorted = problem;
  for (std::size_t m = 0; m < order.size(); ++m) {
    sorted.sizes[m] = problem.sizes[static_cast<std::size_t>(order[m])];
  }
  PlanOptions rest = options;
  rest.time_limit = options.time_limit - (Clock::now() - began);
  Plan plan = plan_in_order(sorted, rest, schedule_only);
  if (in_order.best.value <= plan.best.value) return in_order;
  plan.schedule = renumber_microbatches(plan.schedule, order);
  plan.problem = problem;
  plan.seconds = std::chrono::duration<double>(Clock::now() - began).count();
  return plan;
}

}  // namespace

std::vector<std::string> Plan::boundary_names() const {
  std::vector<std::string> names;
  for (std::size_t s = 1; s < best.choice.begins.size(); ++s) {
    const auto layer = static_cast<std::size_t>(best.choice.begins[s]);
    const std::string& name = problem.layers[layer].name;
    names.push_back(name.empty() ? std::to_string(layer) : name);
  }
  return names;
}

Plan make_plan(const PlanProblem& problem, const PlanOptions& options) {
  check_problem(problem);
  check_space(problem, options.space);
  return plan_any_order(problem, options, false);
}

Plan plan_schedule_only(const PlanProblem& problem, const PlanOptions& options) {
  check_problem(problem);
  const auto stages = static_cast<int32_t>(problem.layers.size());
  require<ArgumentError>(stages % problem.num_ranks() == 0,
                         "{} stages cannot be shared out to {} ranks evenly", stages,
                         problem.num_ranks());
  PlanOptions fixed = options;
  fixed.space.stages_per_rank = {stages / problem.num_ranks()};
  if (fixed.space.recompute == RecomputeChoice::kAuto) {
    fixed.space.recompute = RecomputeChoice::kNone;
  }
  check_space(problem, fixed.space);
  return plan_any_order(problem, fixed, true);
}

}  // namespace stagecraft
