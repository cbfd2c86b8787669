#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "stagecraft/plan/evaluate.h"
#include "stagecraft/plan/instance.h"
#include "stagecraft/plan/word.h"

namespace stagecraft::plan {

/// Gap filling on a complete schedule. The first half of a pass goes through the actions in
/// descending order of their ends. It moves each action to the latest place that its readers, the
/// gaps of its rank and memory allow. The second half goes in ascending order of starts and moves
/// each action to the earliest place. The cost of a move is the number of places that it passes, so
/// a pass is about linear.
class GapFiller {
 public:
  /// `in` must outlive it.
  explicit GapFiller(const Instance& in);

  /// Repeats `pass` until the value did not fall `patience` times in a row, or reached `enough`.
  /// `words` become the best found. Returns their value. REQUIRES words that run and fit, of that
  /// value.
  double improve(Words& words, double value, int patience, double enough);

  /// One pass. The words still fit, but their value may become worse. Returns their score. REQUIRES
  /// words that run and fit.
  Score pass(Words& words);

 private:
  struct Slot {
    double start = 0;
    double end = 0;
    double before = 0;  // memory that the rank holds before the action
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
  std::vector<double> limits_;            // by rank: the latest end of an action
  std::vector<double> starts_;            // by id
  std::vector<int32_t> places_;           // by id
  std::vector<std::pair<double, std::pair<int32_t, std::size_t>>> order_;  // rank, id
};

}  // namespace stagecraft::plan
