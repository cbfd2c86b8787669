#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "stagecraft/plan/anneal.h"
#include "stagecraft/plan/evaluate.h"
#include "stagecraft/plan/fill.h"
#include "stagecraft/plan/instance.h"
#include "stagecraft/plan/random.h"
#include "stagecraft/plan/search_bound.h"
#include "stagecraft/plan/seeds.h"
#include "stagecraft/plan/synthesise.h"
#include "stagecraft/plan/word.h"

namespace stagecraft::plan {

/// The search of synthesise: keeps the best words so far, and has several ways to find better ones.
class Search {
 public:
  /// The arguments must outlive it. REQUIRES a feasible problem.
  Search(const ScheduleProblem& problem, const Instance& in, double bound,
         const SynthesisOptions& options);

  /// Runs the whole search, within the limits of the options.
  void run();
  /// Tries the sequential schedule, the built-in schedules, then `rounds` seeds.
  void run_seeds(int64_t rounds);

  const Words& words() const { return best_; }
  double value() const { return value_; }
  const std::string& found_by() const { return found_by_; }
  int64_t rounds() const { return rounds_; }
  /// Whether the best words are known to be optimal.
  bool is_optimal() const { return is_proved_ || is_at_bound(); }
  double seconds() const;

 private:
  // Whether the search is at the bound, cancelled, or out of time or rounds.
  bool is_over() const;
  bool is_at_bound() const { return value_ <= enough_; }
  // Keeps words that are better than the best; returns whether they were.
  bool take(const Words& words, double value, std::string_view how);
  // Evaluates and takes words, and fills them if their value is near enough to the best. Returns
  // their value.
  double consider(Words& words, double nearness, std::string_view how);
  void try_known();
  void try_zero_bubble();
  void try_seed();
  // Disturbs good words a little and fills the gaps.
  void try_shaken();
  // Anneals the best words, until the share `end` of the budget is spent.
  void anneal(double end);
  // Solves fewer microbatches and repeats the middle, until the share `end` of the budget is spent.
  void try_repetition(double end);
  void try_repeated(const Instance& small, const Words& words);
  // Tries all orders of a small problem, until the share `end` of the budget is spent.
  void go_through_all(double end);
  // The share of rounds or time that is spent.
  double spent() const;

  const ScheduleProblem& problem_;
  const Instance& in_;
  const SynthesisOptions& options_;
  double bound_;
  double enough_;  // a value that counts as the bound
  std::chrono::steady_clock::time_point start_;
  Evaluator evaluator_;
  Seeder seeder_;
  GapFiller filler_;
  Annealer annealer_;
  Random random_;
  std::vector<DueDates> starts_;
  std::vector<std::pair<double, DueDates>> pool_;  // best first
  Words scratch_;
  Words shaken_;  // the words that try_shaken starts from
  double shaken_value_ = kNever;
  Words best_;
  double value_ = kNever;
  std::string found_by_;
  int64_t rounds_ = 0;
  bool is_proved_ = false;
  int64_t round_limit_;
  std::size_t seeds_ = 0;
};

}  // namespace stagecraft::plan
