#include "stagecraft/plan/split_search.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "stagecraft/plan/balance.h"
#include "stagecraft/plan/bound.h"
#include "stagecraft/plan/memory_need.h"
#include "stagecraft/plan/synthesise.h"
#include "stagecraft/plan/unlimited.h"

namespace stagecraft {
namespace {

std::size_t at(int32_t index) {
  return static_cast<std::size_t>(index);
}

/// Compared in this order: lacking memory, bound, then how uneven the ranks' work is.
struct SplitScore {
  double lacks = 0;
  double bound = 0;
  double uneven = 0;

  bool beats(const SplitScore& other) const {
    constexpr double kClose = 1e-12;
    if (lacks != other.lacks) return lacks < other.lacks * (1 - kClose);
    if (std::abs(bound - other.bound) > kClose * other.bound) return bound < other.bound;
    return uneven < other.uneven * (1 - kClose);
  }
};

double lacking(const ScheduleProblem& problem) {
  const bool capped = std::any_of(problem.ranks.begin(), problem.ranks.end(),
                                  [](const RankLimit& rank) { return std::isfinite(rank.cap); });
  if (!capped) return 0;
  double lacks = 0;
  for (const Shortfall& one : find_shortfalls(problem)) lacks = std::max(lacks, one.lacks());
  return lacks;
}

/// What each rank computes for a microbatch of size 1.
std::vector<double> work_of_ranks(const ScheduleProblem& problem) {
  std::vector<double> work(problem.ranks.size(), 0);
  for (std::size_t s = 0; s < problem.stages.size(); ++s) {
    const StageLoad& load = problem.stages[s];
    const double apart = load.backward_input + load.backward_weight;
    const double backward = load.is_split ? apart : load.backward.value_or(apart);
    const auto rank = static_cast<std::size_t>(problem.placement.ranks()[s]);
    work[rank] += (load.forward + backward) / problem.ranks[rank].speed;
  }
  return work;
}

/// Improves one choice by moves, until none helps.
class LocalSearch {
 public:
  LocalSearch(const StageComposer& composer, const SearchLimit& limit, bool may_toggle)
      : composer_(composer), limit_(limit), may_toggle_(may_toggle) {}

  PlanChoice improve(PlanChoice choice) {
    best_ = std::move(choice);
    score_ = score(best_, nullptr);
    bool better = true;
    while (better && !limit_.reached()) {
      better = move_boundaries();
      better = shift_boundaries() || better;
      if (may_toggle_) better = toggle_recompute() || better;
      better = swap_ranks() || better;
    }
    return std::move(best_);
  }

 private:
  // The work of each rank bounds the step from below: if that is above the best bound already, the
  // whole bound need not be computed.
  SplitScore score(const PlanChoice& choice, const SplitScore* to_beat) const {
    const ScheduleProblem problem = composer_.compose(choice);
    SplitScore result;
    double squares = 0;
    double most = 0;
    for (const double one : work_of_ranks(problem)) {
      squares += one * one;
      most = std::max(most, one);
    }
    result.uneven = squares;
    result.bound = most * composer_.total_size();
    result.lacks = lacking(problem);
    if (to_beat != nullptr && !result.beats(*to_beat)) return result;
    if (result.lacks == 0) result.bound = lower_bound(problem).value;
    return result;
  }

  bool try_choice(PlanChoice&& choice) {
    const SplitScore tried = score(choice, &score_);
    if (!tried.beats(score_)) return false;
    best_ = std::move(choice);
    score_ = tried;
    return true;
  }

  bool is_legal(const std::vector<int32_t>& begins) const {
    for (std::size_t s = 1; s < begins.size(); ++s) {
      if (begins[s] <= begins[s - 1]) return false;
    }
    return begins.back() < composer_.num_layers();
  }

  bool move_group(int32_t first, int32_t count, int32_t by) {
    PlanChoice choice = best_;
    for (int32_t s = first; s < first + count; ++s) choice.begins[at(s)] += by;
    return is_legal(choice.begins) && try_choice(std::move(choice));
  }

  bool move_boundaries() {
    bool better = false;
    for (int32_t s = 1; s < best_.num_stages() && !limit_.reached(); ++s) {
      for (const int32_t by : {-1, 1, -2, 2}) better = move_group(s, 1, by) || better;
    }
    return better;
  }

  bool shift_boundaries() {
    bool better = false;
    for (int32_t s = 1; s + 1 < best_.num_stages() && !limit_.reached(); ++s) {
      for (const int32_t by : {-1, 1}) {
        for (int32_t count = 2; count <= 4 && s + count <= best_.num_stages(); ++count) {
          better = move_group(s, count, by) || better;
        }
      }
    }
    return better;
  }

  bool toggle_recompute() {
    bool better = false;
    for (int32_t s = 0; s < best_.num_stages() && !limit_.reached(); ++s) {
      PlanChoice choice = best_;
      choice.recompute[at(s)] = !choice.recompute[at(s)];
      better = try_choice(std::move(choice)) || better;
    }
    return better;
  }

  bool swap_ranks() {
    bool better = false;
    const auto ranks = static_cast<int32_t>(best_.rank_order.size());
    for (int32_t a = 0; a < ranks && !limit_.reached(); ++a) {
      for (int32_t b = a + 1; b < ranks; ++b) {
        const std::vector<PlanRank>& kinds = composer_.problem().ranks;
        if (kinds[at(best_.rank_order[at(a)])] == kinds[at(best_.rank_order[at(b)])]) continue;
        PlanChoice choice = best_;
        std::swap(choice.rank_order[at(a)], choice.rank_order[at(b)]);
        better = try_choice(std::move(choice)) || better;
      }
    }
    return better;
  }

  const StageComposer& composer_;
  const SearchLimit& limit_;
  bool may_toggle_;
  PlanChoice best_;
  SplitScore score_;
};

bool differ(const std::vector<PlanRank>& ranks) {
  return std::any_of(ranks.begin(), ranks.end(),
                     [&](const PlanRank& rank) { return rank != ranks.front(); });
}

/// What the layers of a stage weigh when the first split is made.
enum class Weighing : uint8_t { kWork, kWorkWithRecompute, kForward, kMemory };

std::vector<double> weigh(const StageComposer& composer, Weighing weighing) {
  std::vector<double> costs;
  for (int32_t l = 0; l < composer.num_layers(); ++l) {
    switch (weighing) {
      case Weighing::kWork:
        costs.push_back(composer.work(l, l + 1));
        break;
      case Weighing::kWorkWithRecompute:
        costs.push_back(composer.work(l, l + 1, true));
        break;
      case Weighing::kForward:
        costs.push_back(composer.forward(l, l + 1));
        break;
      case Weighing::kMemory:
        costs.push_back(composer.fixed_memory(l, l + 1));
        break;
    }
  }
  return costs;
}

PlanChoice first_choice(const StageComposer& composer, int32_t stages_per_rank,
                        PlacementStyle placement, Weighing weighing) {
  const PlanProblem& problem = composer.problem();
  PlanChoice choice{.stages_per_rank = stages_per_rank, .placement = placement};
  const int32_t stages = stages_per_rank * problem.num_ranks();
  choice.recompute.assign(at(stages), false);
  choice.begins.assign(at(stages), 0);
  if (differ(problem.ranks)) {
    for (int32_t r = 0; r < problem.num_ranks(); ++r) choice.rank_order.push_back(r);
  }
  const Placement where = place_stages(choice, problem.num_ranks());
  std::vector<double> speeds;
  for (const int32_t rank : where.ranks()) {
    const PlanRank& kind = problem.ranks[at(rank)];
    speeds.push_back(weighing == Weighing::kMemory ? kind.memory.value_or(1) : kind.speed);
  }
  choice.begins = balance(weigh(composer, weighing), speeds);
  return choice;
}

/// Recompute patterns to begin with where memory binds: the first stages hold the most microbatches
/// of a lap.
std::vector<std::vector<bool>> recompute_patterns(int32_t stages) {
  std::vector<std::vector<bool>> patterns;
  for (int32_t quarter = 0; quarter <= 4; ++quarter) {
    const int32_t count = stages * quarter / 4;
    std::vector<bool> first(at(stages), false);
    std::vector<bool> last(at(stages), false);
    for (int32_t s = 0; s < count; ++s) first[at(s)] = true;
    for (int32_t s = stages - count; s < stages; ++s) last[at(s)] = true;
    for (auto* pattern : {&first, &last}) {
      if (std::find(patterns.begin(), patterns.end(), *pattern) == patterns.end()) {
        patterns.push_back(std::move(*pattern));
      }
    }
  }
  return patterns;
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
        start(per_rank, per_rank == 1 ? PlacementStyle::kLoop : placement);
      }
    }
    sort();
    // What fits at all is found by its need alone.
    if (!found_.empty() && !found_.front().fits) {
      if (std::optional<PlanChoice> choice = choose_for_memory(composer_, space_)) {
        if (differ(composer_.problem().ranks)) {
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
  void start(int32_t per_rank, PlacementStyle placement) {
    const bool may_toggle = space_.recompute == RecomputeChoice::kAuto;
    for (const Weighing weighing :
         {Weighing::kWork, Weighing::kWorkWithRecompute, Weighing::kForward, Weighing::kMemory}) {
      if (weighing == Weighing::kWorkWithRecompute && space_.recompute == RecomputeChoice::kNone) {
        continue;
      }
      // Limits on time do not stop the first start, so that there is a candidate.
      if (!found_.empty() && limit_.reached()) return;
      PlanChoice choice = first_choice(composer_, per_rank, placement, weighing);
      const bool all =
          space_.recompute == RecomputeChoice::kAll || weighing == Weighing::kWorkWithRecompute;
      if (all) choice.recompute.assign(choice.recompute.size(), true);
      add(LocalSearch(composer_, limit_, may_toggle).improve(std::move(choice)));
    }
  }

  void add(PlanChoice choice) {
    for (const PlanCandidate& known : found_) {
      if (known.choice == choice) return;
    }
    PlanCandidate candidate = rate(composer_, std::move(choice));
    candidate.score = candidate.fits ? candidate.bound : plan::kUnlimited;
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

  // Whether caps cost the best candidate so much that bounds are too hopeful to compare by.
  bool memory_binds() const {
    double free = plan::kUnlimited;
    for (const PlanCandidate& one : found_) free = std::min(free, one.free_bound);
    return !found_.front().fits || found_.front().bound > 1.03 * free;
  }

  // Memory binds: patterns of recompute with boundaries of their own, compared by quick schedules;
  // then the best ones are toggled stage by stage.
  void refine() {
    if (found_.empty() || !memory_binds()) return;
    std::vector<std::pair<int32_t, PlacementStyle>> kinds;
    for (const PlanCandidate& one : found_) {
      const std::pair kind(one.choice.stages_per_rank, one.choice.placement);
      if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
    }
    for (const auto& [per_rank, placement] : kinds) {
      const PlanChoice base = first_choice(composer_, per_rank, placement, Weighing::kWork);
      for (std::vector<bool>& pattern : recompute_patterns(base.num_stages())) {
        if (limit_.reached()) break;
        PlanChoice choice = base;
        choice.recompute = std::move(pattern);
        add(LocalSearch(composer_, limit_, false).improve(std::move(choice)));
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
    constexpr double kAsGood = 5e-4;
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
          // Several ranks may have the most work: each one less is a step, if the time stays.
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

  // Every stage with recompute toggled, and every boundary moved by a layer.
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
  candidate.lacks = lacking(problem);
  for (const double one : work_of_ranks(problem)) candidate.uneven += one * one;
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
