#include "stagecraft/plan/split_search.h"

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <utility>

#include "stagecraft/plan/bound.h"
#include "stagecraft/plan/memory_need.h"
#include "stagecraft/plan/split_moves.h"
#include "stagecraft/plan/split_starts.h"
#include "stagecraft/plan/synthesise.h"
#include "stagecraft/plan/unlimited.h"

namespace stagecraft {
namespace {

std::size_t at(int32_t index) {
  return static_cast<std::size_t>(index);
}

class SplitSearch {
 public:
  SplitSearch(const StageComposer& composer, const SearchSpace& space, const SearchLimit& limit)
      : composer_(composer), space_(space), limit_(limit) {}

  std::vector<PlanCandidate> run() {
    for (const int32_t per_rank : space_.stages_per_rank) {
      if (per_rank * composer_.problem().num_ranks() > composer_.num_layers()) continue;
      for (const PlacementStyle placement : space_.placements) {
        if (per_rank == 1 && placement != space_.placements.front()) continue;
        for (const int32_t active : active_to_try(composer_.problem(), per_rank)) {
          start(per_rank, per_rank == 1 ? PlacementStyle::kLoop : placement, active);
        }
      }
    }
    sort();
    // If no candidate fits, search for the choice that needs the least memory.
    if (!found_.empty() && !found_.front().fits) {
      if (std::optional<PlanChoice> choice = choose_for_memory(composer_, space_)) {
        if (plan::differ(composer_.problem().ranks)) {
          for (int32_t r = 0; r < composer_.problem().num_ranks(); ++r) {
            choice->rank_order.push_back(r);
          }
        }
        add(std::move(*choice));
        sort();
      }
    }
    if (space_.recompute == RecomputeChoice::kAuto) refine();
    sort();
    return std::move(found_);
  }

 private:
  void start(int32_t per_rank, PlacementStyle placement, int32_t active) {
    const bool may_toggle = space_.recompute == RecomputeChoice::kAuto;
    for (const plan::Weighing weighing : {plan::Weighing::kWork, plan::Weighing::kWorkWithRecompute,
                                          plan::Weighing::kForward, plan::Weighing::kMemory}) {
      if (weighing == plan::Weighing::kWorkWithRecompute &&
          space_.recompute == RecomputeChoice::kNone) {
        continue;
      }
      // The first start is not stopped by the limit, so that there is at least one candidate.
      if (!found_.empty() && limit_.reached()) return;
      PlanChoice choice = plan::first_choice(composer_, per_rank, placement, weighing);
      choice.active_stages = active;
      const bool all = space_.recompute == RecomputeChoice::kAll ||
                       weighing == plan::Weighing::kWorkWithRecompute;
      if (all) choice.recompute.assign(choice.recompute.size(), true);
      add(plan::improve_split(composer_, std::move(choice), limit_, may_toggle));
    }
  }

  void add(PlanChoice choice) {
    for (const PlanCandidate& known : found_) {
      if (known.choice == choice) return;
    }
    PlanCandidate candidate = rate(composer_, std::move(choice));
    candidate.score = plan::kUnlimited;
    if (candidate.fits) candidate.score = candidate.bound;
    found_.push_back(std::move(candidate));
  }

  void sort() {
    std::stable_sort(found_.begin(), found_.end(),
                     [](const PlanCandidate& a, const PlanCandidate& b) {
                       if (a.fits != b.fits) return a.fits;
                       if (!a.fits) return a.lacks < b.lacks;
                       return a.score < b.score;
                     });
  }

  double quick(const PlanChoice& choice) const {
    return quick_score(composer_.compose(choice)).value_or(plan::kUnlimited);
  }

  // Whether memory binds: the best candidate does not fit, or its bound is more than 3 % above the
  // lowest bound without caps. Bounds are then too low to compare by.
  bool memory_binds() const {
    double free = plan::kUnlimited;
    for (const PlanCandidate& one : found_) free = std::min(free, one.free_bound);
    return !found_.front().fits || found_.front().bound > 1.03 * free;
  }

  // If memory binds, adds patterns of recompute, each with its own boundaries. Then scores all
  // candidates by quick schedules, and toggles recompute of the best ones stage by stage.
  void refine() {
    if (found_.empty() || !memory_binds()) return;
    std::vector<std::tuple<int32_t, PlacementStyle, int32_t>> kinds;
    for (const PlanCandidate& one : found_) {
      const std::tuple kind(one.choice.stages_per_rank, one.choice.placement,
                            one.choice.active_stages);
      if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
    }
    for (const auto& [per_rank, placement, active] : kinds) {
      PlanChoice base = plan::first_choice(composer_, per_rank, placement, plan::Weighing::kWork);
      base.active_stages = active;
      for (std::vector<bool>& pattern : plan::recompute_patterns(base.num_stages())) {
        if (limit_.reached()) break;
        PlanChoice choice = base;
        choice.recompute = std::move(pattern);
        add(plan::improve_split(composer_, std::move(choice), limit_, false));
      }
    }
    sort();
    score_quickly();
    sort();
    toggle_best();
  }

  void score_quickly() {
    for (PlanCandidate& one : found_) {
      if (!one.fits || limit_.reached()) continue;
      one.score = std::max(one.bound, quick(one.choice));
    }
  }

  void toggle_best() {
    constexpr std::size_t kMost = 3;
    constexpr int32_t kPasses = 8;
    constexpr double kAsGood = 5e-4;  // scores that differ by less count as equal
    const std::size_t count = std::min(kMost, found_.size());
    for (std::size_t i = 0; i < count && found_[i].fits; ++i) {
      PlanCandidate now = found_[i];
      PlanCandidate best = now;
      bool improved = true;
      for (int32_t pass = 0; pass < kPasses && improved && !limit_.reached(); ++pass) {
        improved = false;
        for (PlanChoice& choice : neighbours(now.choice)) {
          if (limit_.reached()) break;
          PlanCandidate tried = rate(composer_, std::move(choice));
          if (!tried.fits || tried.bound > now.score * (1 + kAsGood)) continue;
          tried.score = std::max(tried.bound, quick(tried.choice));
          // Several ranks may have the most work. Reducing the work of one of them is accepted even
          // if the time stays the same.
          const bool better = tried.score < now.score * (1 - 1e-9);
          const bool more_even =
              tried.score <= now.score * (1 + kAsGood) && tried.uneven < now.uneven * (1 - 1e-6);
          if (!better && !more_even) continue;
          now = std::move(tried);
          improved = true;
          if (now.score < best.score) best = now;
        }
      }
      if (best.choice != found_[i].choice) found_.push_back(std::move(best));
    }
  }

  // All choices with the recompute of one stage toggled, or with one boundary moved by a layer.
  std::vector<PlanChoice> neighbours(const PlanChoice& choice) const {
    std::vector<PlanChoice> result;
    for (int32_t s = 0; s < choice.num_stages(); ++s) {
      PlanChoice toggled = choice;
      toggled.recompute[at(s)] = !toggled.recompute[at(s)];
      result.push_back(std::move(toggled));
    }
    for (int32_t s = 1; s < choice.num_stages(); ++s) {
      for (const int32_t by : {-1, 1}) {
        PlanChoice moved = choice;
        const int32_t begin = moved.begins[at(s)] + by;
        const int32_t end =
            s + 1 < choice.num_stages() ? choice.begins[at(s) + 1] : composer_.num_layers();
        if (begin <= choice.begins[at(s) - 1] || begin >= end) continue;
        moved.begins[at(s)] = begin;
        result.push_back(std::move(moved));
      }
    }
    return result;
  }

  const StageComposer& composer_;
  const SearchSpace& space_;
  const SearchLimit& limit_;
  std::vector<PlanCandidate> found_;
};

}  // namespace

bool SearchLimit::reached() const {
  if (cancel != nullptr && cancel->load(std::memory_order_relaxed)) return true;
  return deadline && std::chrono::steady_clock::now() >= *deadline;
}

double SearchLimit::seconds_left() const {
  if (!deadline) return plan::kUnlimited;
  return std::chrono::duration<double>(*deadline - std::chrono::steady_clock::now()).count();
}

PlanCandidate rate(const StageComposer& composer, PlanChoice choice) {
  PlanCandidate candidate;
  ScheduleProblem problem = composer.compose(choice);
  candidate.lacks = plan::lacking(problem);
  for (const double one : plan::work_of_ranks(problem)) candidate.uneven += one * one;
  candidate.fits = candidate.lacks <= 0;
  candidate.bound = lower_bound(problem).value;
  for (RankLimit& rank : problem.ranks) rank.cap = plan::kUnlimited;
  candidate.free_bound = lower_bound(problem).value;
  candidate.choice = std::move(choice);
  return candidate;
}

std::vector<PlanCandidate> search_splits(const StageComposer& composer, const SearchSpace& space,
                                         const SearchLimit& limit) {
  return SplitSearch(composer, space, limit).run();
}

}  // namespace stagecraft
