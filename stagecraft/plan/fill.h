#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "stagecraft/plan/evaluate.h"
#include "stagecraft/plan/instance.h"
#include "stagecraft/plan/word.h"

namespace stagecraft::plan {

/// Gap filling on a complete schedule. In descending order of end every action goes to the latest
/// place that its readers, the gaps of its rank and memory allow; then, in ascending order of
/// start, every action to the earliest. A move costs as much as it passes places, so a pass is
/// about linear.
class GapFiller {
 public:
  /// `in` must outlive it.
  explicit GapFiller(const Instance& in);

  /// Repeats both passes while the value falls, `patience` times in vain; ends at `enough`. `words`
  /// become the best found; returns their value. REQUIRES words that run and fit, of that value.
  double improve(Words& words, double value, int patience, double enough);

  /// Both passes, once. The words still fit; their value may have become worse. Returns what they
  /// are worth. REQUIRES words that run and fit.
  Score pass(Words& words);

 private:
  struct Slot {
    double start = 0;
    double end = 0;
    double before = 0;  // what the rank holds before it
    Op op = Op(0, 0, 0);
  };

  Score fill(Words& words, const Score& before);
  void load(const Words& words);
  void store(Words& words) const;
  void move_all_late();
  void move_all_early();
  void move_late(int32_t rank, std::size_t place, double limit);
  void move_early(int32_t rank, std::size_t place);
  double ready(const Op& op) const;
  double due(const Op& op, double limit) const;
  double start(int32_t kind, int32_t stage, int32_t m) const {
    return starts_[in_.id(kind, stage, m)];
  }
  double end(int32_t kind, int32_t stage, int32_t m) const {
    return start(kind, stage, m) + in_.cost(kind, stage, m);
  }
  double delta(const Op& op) const { return in_.delta[op.kind][op.stage] * in_.size[op.m]; }
  double need(const Op& op) const { return in_.need[op.kind][op.stage] * in_.size[op.m]; }
  void shift(int32_t rank, std::size_t from, std::size_t to, double at);

  const Instance& in_;
  Evaluator evaluator_;
  double eps_;
  std::vector<std::vector<Slot>> lines_;  // by rank
  std::vector<double> limits_;            // by rank: no action may end later
  std::vector<double> starts_;            // by id
  std::vector<int32_t> places_;           // by id
  std::vector<std::pair<double, std::pair<int32_t, std::size_t>>> order_;  // rank, id
};

}  // namespace stagecraft::plan
