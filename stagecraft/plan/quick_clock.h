#pragma once

#include <cstdint>
#include <vector>

#include "stagecraft/plan/instance.h"
#include "stagecraft/plan/word.h"

namespace stagecraft::plan {

/// Computes the times of the actions in words. If a few actions move, it computes only the times
/// after the change again. It ignores memory. For instances without links that transfers wait for.
class QuickClock {
 public:
  /// `in` must outlive it.
  explicit QuickClock(const Instance& in);
  static bool takes(const Instance& in) { return in.links == 0; }

  /// All times of the words. REQUIRES that on each rank F, I and W of a microbatch and stage are in
  /// this order. Returns false if ranks wait for each other.
  bool start(const Words& words);
  /// The times of words that differ from the accepted ones on `rank`, from `place` on. REQUIRES and
  /// returns the same as start().
  bool change(const Words& words, int32_t rank, std::size_t place);
  /// Makes the words of the last call the accepted ones.
  void accept();

  /// The objective of the last call, and the mean over the ranks.
  double value() const { return value_; }
  double mean() const { return mean_; }

 private:
  struct Need {
    int32_t id = -1;
    double delay = 0;
  };

  bool run(const Words& words);

  const Instance& in_;
  std::vector<double> times_;        // by id
  std::vector<Need> needs_;          // grouped by id
  std::vector<int32_t> first_need_;  // by id
  std::vector<double> ends_[2];      // accepted, tried; by id
  std::vector<std::size_t> next_;    // by rank
  std::vector<double> now_;
  std::vector<double> first_[2];
  double value_ = 0;
  double mean_ = 0;
};

}  // namespace stagecraft::plan
