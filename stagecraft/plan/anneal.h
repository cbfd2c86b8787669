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

/// Local search on the order of each rank: one action moves up to 60 places, and all times are
/// computed anew. The energy is the value plus a twentieth of the ranks' mean, so that a move that
/// helps one rank counts although another one is the last.
class Annealer {
 public:
  /// `in` must outlive it.
  explicit Annealer(const Instance& in);

  /// Moves that many actions at random places of words that fit; they fit afterwards, but ranks may
  /// wait for each other.
  void shake(Words& words, int moves, Random& random);

  /// From words that run and fit, of that value. `progress` says how much of the time is over, from
  /// 0 to 1; it is asked once in a while, and the search ends at 1 or at `enough`. `words` become
  /// the best found; returns their value. REQUIRES QuickClock::takes(in).
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
  std::vector<std::vector<double>> before_;  // by rank: what it holds before each action
};

/// How many moves a call of `progress` stands for.
constexpr int64_t kMovesPerProgress = 16;

}  // namespace stagecraft::plan
