#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "stagecraft/plan/evaluate.h"
#include "stagecraft/plan/instance.h"
#include "stagecraft/plan/paths.h"
#include "stagecraft/plan/word.h"

namespace stagecraft::plan {

/// Branch and bound over the words of a small instance. Actions are added in the order of their
/// starts. A state is skipped if it was reached before in a way in which no time was later.
class ExactSearch {
 public:
  static constexpr int64_t kMostActions = 40;
  /// Whether the instance has few actions, and no links that transfers wait for.
  static bool takes(const Instance& in) {
    return in.num_actions() <= kMostActions && in.links == 0;
  }

  /// `in` must outlive it. REQUIRES takes(in).
  explicit ExactSearch(const Instance& in);

  /// Looks for words with less than `value`. Calls `goes_on` every kNodesPerQuestion nodes, and
  /// ends if it returns false. Returns true if the search is complete: nothing is better than
  /// `value` and the words that were found.
  bool run(double value, const std::function<bool()>& goes_on);
  static constexpr int64_t kNodesPerQuestion = 64;

  bool has_found() const { return has_found_; }
  const Words& words() const { return best_; }
  double value() const { return value_; }

 private:
  struct Step {
    double start = 0;
    int32_t rank = 0;
    int32_t kind = 0;
    int32_t stage = 0;
  };

  void descend(double last_start);
  bool find_start(int32_t kind, int32_t stage, double& start) const;
  double least_end(double last_start) const;
  bool is_known(double last_start);

  const Instance& in_;
  Paths paths_;
  double value_ = kNever;
  bool has_found_ = false;
  bool is_stopped_ = false;
  int64_t nodes_ = 0;
  int64_t left_ = 0;
  const std::function<bool()>* goes_on_ = nullptr;
  Words words_;
  Words best_;
  std::vector<int32_t> done_[kKinds];
  std::vector<double> ends_;
  std::vector<double> free_;
  std::vector<double> first_;
  std::vector<double> held_;
  std::vector<double> work_;  // by rank: time of the remaining actions
  std::unordered_map<uint64_t, std::vector<std::vector<double>>> seen_;
};

}  // namespace stagecraft::plan
