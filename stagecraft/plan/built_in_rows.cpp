#include "stagecraft/plan/built_in_rows.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "stagecraft/base/text_table.h"
#include "stagecraft/plan/balance.h"
#include "stagecraft/plan/bound.h"
#include "stagecraft/plan/memory_need.h"
#include "stagecraft/plan/unshard_choice.h"
#include "stagecraft/schedule/builders/builders.h"

namespace stagecraft {
namespace {

/// Splits of one kind (stages a rank, placement) on which built-in schedules are tried.
std::vector<PlanChoice> splits_to_try(const StageComposer& composer,
                                      const std::vector<PlanCandidate>& candidates,
                                      int32_t stages_per_rank, const Placement& placement) {
  constexpr std::size_t kMost = 3;
  const int32_t ranks = composer.problem().num_ranks();
  std::vector<PlanChoice> found;
  const auto add = [&](PlanChoice choice) {
    if (!(place_stages(choice, ranks) == placement)) return;
    if (std::find(found.begin(), found.end(), choice) == found.end()) {
      found.push_back(std::move(choice));
    }
  };
  const std::vector<int32_t> active = active_to_try(composer.problem(), stages_per_rank);
  for (const int32_t each : active) {
    const std::size_t most = found.size() + kMost;
    for (const PlanCandidate& one : candidates) {
      if (one.choice.active_stages != each || one.choice.stages_per_rank != stages_per_rank)
        continue;
      if (one.fits && found.size() < most) add(one.choice);
    }
  }
  const auto stages = static_cast<std::size_t>(stages_per_rank) * static_cast<std::size_t>(ranks);
  if (static_cast<int32_t>(stages) > composer.num_layers()) return found;
  std::vector<double> work;
  for (int32_t l = 0; l < composer.num_layers(); ++l) work.push_back(composer.work(l, l + 1));
  std::vector<double> speeds;
  for (const Rank rank : placement.ranks()) {
    speeds.push_back(composer.problem().ranks[rank.position()].speed);
  }
  for (const PlacementStyle style : {PlacementStyle::kLoop, PlacementStyle::kV}) {
    for (const int32_t each : active) {
      add({.stages_per_rank = stages_per_rank,
           .placement = style,
           .begins = balance(work, speeds),
           .recompute = std::vector<bool>(stages, false),
           .active_stages = each});
    }
    if (stages_per_rank == 1) break;
  }
  return found;
}

std::string over_memory(const StageComposer& composer, const Evaluation& result) {
  const PlanProblem& problem = composer.problem();
  const auto rank = static_cast<std::size_t>(result.fullest_rank);
  return fmt::format("rank {} needs {} of {}", result.fullest_rank,
                     format_memory(problem, result.peaks[rank]),
                     format_memory(problem, problem.ranks[rank].memory.value_or(0)));
}

bool splits_backward(const Schedule& schedule) {
  return std::any_of(schedule.lists().begin(), schedule.lists().end(), [](const ActionList& list) {
    return std::any_of(list.begin(), list.end(),
                       [](Action action) { return action.type() == ActionType::kBackwardInput; });
  });
}

bool has_whole_backward(const Schedule& schedule) {
  return std::any_of(schedule.lists().begin(), schedule.lists().end(), [](const ActionList& list) {
    return std::any_of(list.begin(), list.end(),
                       [](Action action) { return action.type() == ActionType::kBackward; });
  });
}

/// Replaces each B of a stage that keeps its activations by I and W, so that gradients are sent
/// earlier. Overlaps stay unchanged.
Schedule with_split_backward(const Schedule& schedule, const PlanChoice& choice) {
  std::vector<ActionList> lists;
  for (const ActionList& list : schedule.lists()) {
    ActionList& changed = lists.emplace_back();
    int32_t inside = 0;
    for (const Action action : list) {
      const bool splits = inside == 0 && action.type() == ActionType::kBackward &&
                          !choice.recompute[action.stage().position()];
      if (splits) {
        changed.emplace_back(action.stage(), ActionType::kBackwardInput, action.microbatch());
        changed.emplace_back(action.stage(), ActionType::kBackwardWeight, action.microbatch());
      } else {
        changed.push_back(action);
      }
      inside = action.is_overlap() ? action.num_parts() : std::max(0, inside - 1);
    }
  }
  return {schedule.level(), schedule.placement(), std::move(lists)};
}

bool is_limited_and_sharded(const PlanProblem& problem) {
  return problem.sharding.has_gathers() &&
         std::any_of(problem.ranks.begin(), problem.ranks.end(),
                     [](const PlanRank& rank) { return rank.memory.has_value(); });
}

/// One built-in schedule on one split, with the number of active stages of the choice.
std::optional<BuiltInRow> try_one(const StageComposer& composer, const ScheduleKind& kind,
                                  const Schedule& schedule, PlanChoice choice,
                                  std::string& reason) {
  choice.whole_backward = !splits_backward(schedule);
  PlanRow row;
  std::optional<Schedule> unsharded;
  try {
    UnshardedSchedule found = add_unshards(composer, choice, schedule);
    row.result = std::move(found.result);
    row.lookahead = std::move(found.lookahead);
    unsharded = std::move(found.schedule);
  } catch (const ScheduleError& error) {
    reason = error.what();
    return std::nullopt;
  }
  if (!row.result.fits) {
    reason = over_memory(composer, row.result);
    return std::nullopt;
  }
  row.choice = std::move(choice);
  row.schedule = kind.name;
  row.built_in = true;
  // A schedule with both kinds of backward belongs to neither problem, so the lower of the two
  // bounds holds for it.
  row.bound = tight_bound(composer.compose(row.choice));
  if (has_whole_backward(schedule) && !row.choice.whole_backward) {
    PlanChoice whole = row.choice;
    whole.whole_backward = true;
    const Bound other = tight_bound(composer.compose(whole));
    if (other.value < row.bound.value) row.bound = other;
  }
  return BuiltInRow{std::move(row), std::move(*unsharded)};
}

class BuiltIns {
 public:
  BuiltIns(const StageComposer& composer, bool may_recompute,
           const std::vector<PlanCandidate>& candidates, const std::function<bool()>& stop)
      : composer_(composer), may_recompute_(may_recompute), candidates_(candidates), stop_(stop) {}

  void add(const ScheduleKind& kind, int32_t stages_per_rank) {
    const int32_t ranks = composer_.problem().num_ranks();
    const Dims dims{.p = ranks, .l = stages_per_rank, .m = composer_.problem().microbatches};
    if (!kind.takes(dims)) return;
    if (!result_.rows.empty() && stop_()) return;
    std::optional<Schedule> schedule;
    try {
      schedule =
          kind.build({.ranks = ranks, .microbatches = dims.m, .stages_per_rank = stages_per_rank});
    } catch (const Error& error) {
      result_.unfit.push_back({std::string(kind.name), stages_per_rank, error.what()});
      return;
    }
    std::optional<BuiltInRow> best;
    std::string reason;
    const std::vector<PlanChoice> splits =
        splits_to_try(composer_, candidates_, stages_per_rank, schedule->placement());
    for (const PlanChoice& choice : splits) {
      keep_better(best, try_both(kind, *schedule, choice, reason));
    }
    if (is_limited_and_sharded(composer_.problem())) {
      if (!best) best = try_least_need(kind, *schedule, stages_per_rank);
      if (best) move_boundaries(kind, *schedule, *best);
    }
    if (!best && !splits.empty() && may_recompute_) {
      best = try_with_recompute(kind, *schedule, splits.back());
    }
    const bool equal = kind.name == "1F1B" && stages_per_rank == 1;
    if (best) {
      if (equal) add_equal(kind, *schedule, best->row.choice);
      result_.rows.push_back(std::move(*best));
    } else if (!splits.empty()) {
      result_.unfit.push_back({std::string(kind.name), stages_per_rank, reason});
    }
  }

  BuiltInRows take() { return std::move(result_); }

 private:
  void keep_better(std::optional<BuiltInRow>& best, std::optional<BuiltInRow> one) const {
    const Objective objective = composer_.objective();
    if (one && (!best || one->row.result.value(objective) < best->row.result.value(objective))) {
      best = std::move(one);
    }
  }

  // Tries the schedule unchanged and with its backwards split, and returns the better one.
  std::optional<BuiltInRow> try_both(const ScheduleKind& kind, const Schedule& schedule,
                                     const PlanChoice& choice, std::string& reason) const {
    std::optional<BuiltInRow> best = try_one(composer_, kind, schedule, choice, reason);
    if (has_whole_backward(schedule)) {
      std::string ignored;
      keep_better(best, try_one(composer_, kind, with_split_backward(schedule, choice), choice,
                                best ? ignored : reason));
    }
    return best;
  }

  // Tries the splits that need the least memory. The candidates were rated without gathers, so such
  // a split may be better than all of them.
  std::optional<BuiltInRow> try_least_need(const ScheduleKind& kind, const Schedule& schedule,
                                           int32_t stages_per_rank) const {
    std::optional<BuiltInRow> best;
    for (const PlacementStyle style : {PlacementStyle::kLoop, PlacementStyle::kV}) {
      const std::optional<PlanChoice> choice =
          choose_for_memory(composer_, {.stages_per_rank = {stages_per_rank},
                                        .placements = {style},
                                        .recompute = RecomputeChoice::kNone});
      if (!choice) continue;
      const int32_t ranks = composer_.problem().num_ranks();
      if (!(place_stages(*choice, ranks) == schedule.placement())) continue;
      std::string ignored;
      keep_better(best, try_both(kind, schedule, *choice, ignored));
    }
    return best;
  }

  // Moves boundaries by one layer while the schedule gets faster, gathers included.
  void move_boundaries(const ScheduleKind& kind, const Schedule& schedule, BuiltInRow& best) const {
    constexpr int32_t kMostTries = 60;
    const Objective objective = composer_.objective();
    int32_t tries = 0;
    bool better = true;
    while (better) {
      better = false;
      for (std::size_t s = 1; s < best.row.choice.begins.size(); ++s) {
        for (const int32_t by : {-1, 1}) {
          PlanChoice choice = best.row.choice;
          choice.begins[s] += by;
          if (choice.begins[s] <= choice.begins[s - 1]) continue;
          if (choice.begins[s] >= composer_.end_of(choice, s)) continue;
          if (++tries > kMostTries || stop_()) return;
          std::string ignored;
          std::optional<BuiltInRow> one = try_both(kind, schedule, choice, ignored);
          if (!one) continue;
          const double value = one->row.result.value(objective);
          if (value >= best.row.result.value(objective) * (1 - 1e-9)) continue;
          best = std::move(*one);
          better = true;
        }
      }
    }
  }

  // Makes the stages of ranks that are over their memory recompute, until the schedule fits or all
  // these stages recompute.
  std::optional<BuiltInRow> try_with_recompute(const ScheduleKind& kind, const Schedule& schedule,
                                               PlanChoice choice) const {
    if (splits_backward(schedule)) return std::nullopt;
    for (int32_t round = 0; round < 3; ++round) {
      std::string reason;
      std::optional<BuiltInRow> one = try_both(kind, schedule, choice, reason);
      if (one) return one;
      PlanChoice whole = choice;
      whole.whole_backward = true;
      const Evaluation result = add_unshards(composer_, whole, schedule).result;
      bool changed = false;
      for (std::size_t s = 0; s < choice.recompute.size(); ++s) {
        const std::size_t rank =
            schedule.placement().ranks()[StageId(static_cast<int32_t>(s))].position();
        const std::optional<double>& memory = composer_.problem().ranks[rank].memory;
        if (!memory || result.peaks[rank] <= *memory || choice.recompute[s]) continue;
        choice.recompute[s] = true;
        changed = true;
      }
      if (!changed) break;
    }
    return std::nullopt;
  }

  void add_equal(const ScheduleKind& kind, const Schedule& schedule, const PlanChoice& best) {
    const int32_t stages = composer_.problem().num_ranks();
    PlanChoice choice{.stages_per_rank = 1,
                      .begins = equal_parts(composer_.num_layers(), stages),
                      .recompute = std::vector<bool>(static_cast<std::size_t>(stages), false)};
    if (choice.begins == best.begins && !best.recomputes()) return;
    std::string reason;
    std::optional<BuiltInRow> one = try_both(kind, schedule, choice, reason);
    if (one) {
      one->row.split = "equal layers";
      result_.rows.push_back(std::move(*one));
    } else {
      result_.unfit.push_back({fmt::format("{}, equal layers", kind.name), 1, reason});
    }
  }

  const StageComposer& composer_;
  bool may_recompute_;
  const std::vector<PlanCandidate>& candidates_;
  const std::function<bool()>& stop_;
  BuiltInRows result_;
};

}  // namespace

BuiltInRows built_in_rows(const StageComposer& composer, const SearchSpace& space,
                          const std::vector<PlanCandidate>& candidates,
                          const std::function<bool()>& stop) {
  BuiltIns rows(composer, space.recompute == RecomputeChoice::kAuto, candidates, stop);
  for (const int32_t stages_per_rank : space.stages_per_rank) {
    for (const ScheduleKind& kind : schedule_kinds()) {
      if (kind.has_backward) rows.add(kind, stages_per_rank);
    }
  }
  return rows.take();
}

}  // namespace stagecraft
