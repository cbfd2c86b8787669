#include "stagecraft/plan/split_moves.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "stagecraft/plan/bound.h"

namespace stagecraft::plan {
namespace {

std::size_t index_of(int32_t number) {
  return static_cast<std::size_t>(number);
}

/// The score of a choice. Compared in this order: lacking memory, bound, unevenness of the ranks'
/// work.
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
  // The work of each rank is a cheap lower bound of the step. If the choice does not beat `to_beat`
  // with it, the whole bound is not computed.
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
    for (int32_t s = first; s < first + count; ++s) choice.begins[index_of(s)] += by;
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
      choice.recompute[index_of(s)] = !choice.recompute[index_of(s)];
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
        if (kinds[index_of(best_.rank_order[index_of(a)])] ==
            kinds[index_of(best_.rank_order[index_of(b)])])
          continue;
        PlanChoice choice = best_;
        std::swap(choice.rank_order[index_of(a)], choice.rank_order[index_of(b)]);
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

}  // namespace

double lacking(const ScheduleProblem& problem) {
  const bool capped = std::any_of(problem.ranks.begin(), problem.ranks.end(),
                                  [](const RankLimit& rank) { return std::isfinite(rank.cap); });
  if (!capped) return 0;
  double lacks = 0;
  for (const Shortfall& one : find_shortfalls(problem)) lacks = std::max(lacks, one.lacks());
  return lacks;
}

std::vector<double> work_of_ranks(const ScheduleProblem& problem) {
  std::vector<double> work(problem.ranks.size(), 0);
  for (std::size_t s = 0; s < problem.stages.size(); ++s) {
    const StageLoad& load = problem.stages[s];
    const double apart = load.backward_input + load.backward_weight;
    const double backward = load.is_split ? apart : load.backward.value_or(apart);
    const StageId stage(static_cast<int32_t>(s));
    const std::size_t rank = problem.placement.ranks()[stage].position();
    work[rank] += (load.forward + backward) / problem.ranks[rank].speed;
  }
  return work;
}

PlanChoice improve_split(const StageComposer& composer, PlanChoice choice, const SearchLimit& limit,
                         bool may_toggle) {
  return LocalSearch(composer, limit, may_toggle).improve(std::move(choice));
}

}  // namespace stagecraft::plan
