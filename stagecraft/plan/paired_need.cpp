#include "stagecraft/plan/paired_need.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "stagecraft/plan/unlimited.h"

namespace stagecraft::plan {
namespace {

/// The most steps of the dynamic programming.
constexpr int64_t kMostSteps = 60'000'000;

/// The memory that a stage needs for one microbatch of the largest size.
struct StageNeed {
  double fixed = 0;
  double gathered = 0;     // while the stage is unsharded
  double held = 0;         // from F on
  double after = 0;        // from I on
  double forward = 0;      // peak of F
  double input = 0;        // peak of I or B
  double weight = 0;       // peak of W
  double weight_peak = 0;  // what W needs in addition to what is held
};

StageNeed need_of(const StageComposer& composer, int32_t first, int32_t end, bool recompute) {
  const StageLoad load = composer.stage(first, end, recompute, false);
  const double size = composer.largest_size();
  StageNeed need;
  const HeldMemory parts = composer.held(first, end);
  need.fixed = parts.pieces + parts.gradients;
  need.gathered = parts.gathered;
  need.held = size * load.memory_forward;
  need.after = load.is_split ? size * load.memory_input : 0;
  need.forward = need.held + size * load.peak_forward;
  need.input = std::max(need.held, need.after) + size * load.peak_input;
  need.weight_peak = load.is_split ? size * load.peak_weight : 0;
  need.weight = need.after + need.weight_peak;
  return need;
}

/// The memory for one microbatch that passes an earlier stage `a` and a later stage `b` of a rank,
/// if each W follows its I directly, or if all W come last: the smaller of the two. `active` says
/// how many of the two stages are unsharded at the same time.
double need_of_pair(const StageNeed& a, const StageNeed& b, int32_t active) {
  const double first = std::max(a.forward, a.held + std::max(b.forward, b.input));
  const double at_once = std::max({first, a.held + b.weight, a.input, a.weight});
  const double later = std::max(
      {first, b.after + a.input, a.after + b.after + std::max(a.weight_peak, b.weight_peak)});
  const double gathered = active == 1 ? std::max(a.gathered, b.gathered) : a.gathered + b.gathered;
  return a.fixed + b.fixed + gathered + std::min(at_once, later);
}

class PairedNeed {
 public:
  PairedNeed(const StageComposer& composer, const std::vector<double>& shares,
             RecomputeChoice recompute, const PlanChoice& choice, double known)
      : layers_(composer.num_layers()),
        ranks_(static_cast<int32_t>(shares.size())),
        shares_(shares),
        is_v_(choice.placement == PlacementStyle::kV),
        active_(choice.most_active()),
        least_(known) {
    for (const bool again : {false, true}) {
      if (again && recompute == RecomputeChoice::kNone) continue;
      if (!again && recompute == RecomputeChoice::kAll) continue;
      ways_.push_back(again);
    }
    needs_.resize(ways_.size() * cells());
    for (std::size_t w = 0; w < ways_.size(); ++w) {
      for (int32_t first = 0; first < layers_; ++first) {
        for (int32_t end = first + 1; end <= layers_; ++end) {
          needs_[w * cells() + cell(first, end)] = need_of(composer, first, end, ways_[w]);
        }
      }
    }
    values_.resize(static_cast<std::size_t>(ranks_ + 1) * cells());
    from_.resize(values_.size());
  }

  /// False if it takes too long.
  bool run() {
    // In a loop the second lap begins at `middle`. In a V, `middle` is the end of the layers.
    for (int32_t middle = is_v_ ? layers_ : ranks_; middle <= (is_v_ ? layers_ : layers_ - ranks_);
         ++middle) {
      middle_ = middle;
      std::fill(values_.begin(), values_.end(), kUnlimited);
      value(0, 0, middle) = 0;
      for (int32_t rank = 0; rank < ranks_; ++rank) {
        if (!advance(rank)) return false;
      }
      finish();
    }
    return true;
  }

  bool has_found() const { return !begins_.empty(); }
  double least() const { return least_; }
  const std::vector<int32_t>& begins() const { return begins_; }

  /// Whether each of the stages recomputes, for the needs that were found.
  std::pair<bool, bool> ways(int32_t first, int32_t first_end, int32_t second,
                             int32_t second_end) const {
    std::pair<std::size_t, std::size_t> best;
    pair_need(first, first_end, second, second_end, &best);
    return {ways_[best.first], ways_[best.second]};
  }

 private:
  std::size_t cells() const {
    return static_cast<std::size_t>(layers_ + 1) * static_cast<std::size_t>(layers_ + 1);
  }
  std::size_t cell(int32_t i, int32_t j) const {
    return static_cast<std::size_t>(i) * static_cast<std::size_t>(layers_ + 1) +
           static_cast<std::size_t>(j);
  }
  // The need of the fullest of the first `rank` ranks. These ranks have the layers before `i`. In a
  // V they also have the layers from `j` on, in a loop the layers from the middle to `j`.
  double& value(int32_t rank, int32_t i, int32_t j) {
    return values_[static_cast<std::size_t>(rank) * cells() + cell(i, j)];
  }

  double pair_need(int32_t first, int32_t first_end, int32_t second, int32_t second_end,
                   std::pair<std::size_t, std::size_t>* which = nullptr) const {
    double least = kUnlimited;
    for (std::size_t a = 0; a < ways_.size(); ++a) {
      for (std::size_t b = 0; b < ways_.size(); ++b) {
        const double need = need_of_pair(needs_[a * cells() + cell(first, first_end)],
                                         needs_[b * cells() + cell(second, second_end)], active_);
        if (need >= least) continue;
        least = need;
        if (which != nullptr) *which = {a, b};
      }
    }
    return least;
  }

  double fixed(int32_t first, int32_t end) const { return needs_[cell(first, end)].fixed; }

  bool advance(int32_t rank) {
    const double share = shares_[static_cast<std::size_t>(rank)];
    const int32_t later = ranks_ - 1 - rank;  // ranks that need a layer for each stage, too
    for (int32_t i = rank; i < middle_; ++i) {
      for (int32_t j = 0; j <= layers_; ++j) {
        const double so_far = value(rank, i, j);
        if (so_far >= least_) continue;
        const int32_t last_end = is_v_ ? j - 1 - 2 * later : middle_ - later;
        for (int32_t end = i + 1; end <= last_end; ++end) {
          if (fixed(i, end) >= least_ * share) break;
          const int32_t most = is_v_ ? j - end - 2 * later : layers_ - j - later;
          for (int32_t count = 1; count <= most; ++count) {
            if (++steps_ > kMostSteps) return false;
            const int32_t next = is_v_ ? j - count : j + count;
            const int32_t low = std::min(j, next);
            const int32_t high = std::max(j, next);
            if (fixed(i, end) + fixed(low, high) >= least_ * share) break;
            const double now = std::max(so_far, pair_need(i, end, low, high) / share);
            double& there = value(rank + 1, end, next);
            if (now >= there || now >= least_) continue;
            there = now;
            from_[static_cast<std::size_t>(rank + 1) * cells() + cell(end, next)] = {i, j};
          }
        }
      }
    }
    return true;
  }

  void finish() {
    for (int32_t i = 0; i <= layers_; ++i) {
      const int32_t j = is_v_ ? i : layers_;
      if (!is_v_ && i != middle_) continue;
      if (value(ranks_, i, j) >= least_ * (1 - 1e-12)) continue;
      least_ = value(ranks_, i, j);
      std::vector<int32_t> first;
      std::vector<int32_t> second;
      std::pair<int32_t, int32_t> at = {i, j};
      for (int32_t rank = ranks_; rank > 0; --rank) {
        const std::pair before =
            from_[static_cast<std::size_t>(rank) * cells() + cell(at.first, at.second)];
        first.insert(first.begin(), before.first);
        if (is_v_) {
          second.push_back(at.second);
        } else {
          second.insert(second.begin(), before.second);
        }
        at = before;
      }
      begins_ = std::move(first);
      begins_.insert(begins_.end(), second.begin(), second.end());
    }
  }

  int32_t layers_;
  int32_t ranks_;
  const std::vector<double>& shares_;
  bool is_v_;
  int32_t active_;
  double least_;
  std::vector<bool> ways_;        // recompute
  std::vector<StageNeed> needs_;  // by way, first and end
  std::vector<double> values_;    // by rank, i and j
  std::vector<std::pair<int32_t, int32_t>> from_;
  std::vector<int32_t> begins_;
  int32_t middle_ = 0;
  int64_t steps_ = 0;
};

}  // namespace

std::optional<LeastMemory> least_paired_need(const StageComposer& composer,
                                             const std::vector<double>& shares,
                                             RecomputeChoice recompute, const PlanChoice& choice,
                                             double known) {
  constexpr int32_t kMostPairedLayers = 200;  // tables of layers^2 entries for each rank
  const auto ranks = static_cast<int32_t>(shares.size());
  if (choice.stages_per_rank != 2 || composer.num_layers() > kMostPairedLayers) return std::nullopt;
  const bool is_v = choice.placement == PlacementStyle::kV;
  PairedNeed search(composer, shares, recompute, choice, known);
  if (!search.run() || !search.has_found()) return std::nullopt;
  LeastMemory least{search.least(), choice};
  least.choice.begins = search.begins();
  const auto stages = 2 * static_cast<std::size_t>(ranks);
  least.choice.recompute.assign(stages, false);
  const auto end_of = [&](std::size_t stage) {
    return stage + 1 < stages ? least.choice.begins[stage + 1] : composer.num_layers();
  };
  for (std::size_t r = 0; r < shares.size(); ++r) {
    const std::size_t other = is_v ? stages - 1 - r : shares.size() + r;
    const auto [first, second] =
        search.ways(least.choice.begins[r], end_of(r), least.choice.begins[other], end_of(other));
    least.choice.recompute[r] = first;
    least.choice.recompute[other] = second;
  }
  return least;
}

}  // namespace stagecraft::plan
