#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "stagecraft/plan/evaluate.h"
#include "stagecraft/plan/instance.h"
#include "stagecraft/plan/quick_clock.h"
#include "stagecraft/plan/random.h"
#include "stagecraft/plan/word.h"

namespace stagecraft::plan {

/// Local search on the order of each rank. A step moves one action by up to 60 places and computes
/// all times again. The energy is the value plus a twentieth of the mean of the ranks, so that a
/// move that helps one rank counts even if a different rank is the last to end.
class Annealer {
 public:
  /// `in` must outlive it.
  explicit Annealer(const Instance& in);

  /// Moves that many actions at random places of words that fit. The result fits, but its ranks may
  /// wait for each other.
  void shake(Words& words, int moves, Random& random);

  /// Starts with words that run and fit and have this value. `progress` returns the share of the
  /// time that is over, from 0 to 1. It is called every kMovesPerProgress moves. The search ends at
  /// 1, or when the value reaches `enough`. `words` become the best found. Returns their value.
  /// REQUIRES QuickClock::takes(in).
  double run(Words& words, double value, double enough, Random& random,
             const std::function<double()>& progress);

 private:
  struct Move {
    int32_t rank = 0;
    std::size_t from = 0;
    std::size_t to = 0;
  };

  void load(const Words& words);
  bool propose(Random& random, Move& move) const;
  bool is_legal(const Move& move) const;
  void apply(const Move& move);

  const Instance& in_;
  Evaluator evaluator_;
  QuickClock clock_;
  Words words_;
  std::vector<std::vector<double>> before_;  // by rank: memory held before each action
};

/// The number of moves between two calls of `progress`.
constexpr int64_t kMovesPerProgress = 16;

}  // namespace stagecraft::plan
