#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "stagecraft/plan/instance.h"
#include "stagecraft/plan/word.h"

namespace stagecraft::plan {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// The result of running words.
struct Score {
  double value = kNever;  ///< of the objective; infinite if the words cannot run or do not fit
  double makespan = kNever;
  double span = kNever;
  bool runs = false;  ///< no rank waits forever
  bool fits = false;  ///< no rank is over its cap
};

/// Runs words as `simulate` does, without its records. Keeps its tables from call to call.
class Evaluator {
 public:
  /// `in` must outlive it.
  explicit Evaluator(const Instance& in);

  Score run(const Words& words);

  /// Results of the last run of words that can run: ends by Instance::id, the others by rank.
  const std::vector<double>& ends() const { return ends_; }
  double first_start(int32_t rank) const { return first_[rank]; }
  double last_end(int32_t rank) const { return now_[rank]; }
  const std::vector<double>& peaks() const { return peak_; }

 private:
  static constexpr std::size_t kNothing = SIZE_MAX;

  // Runs a rank until it must wait for an action, and returns the id of that action. Returns
  // kNothing at the end of the rank's word.
  std::size_t advance(const Word& word, int32_t rank);
  // Returns the time when all values that an action reads have arrived. Sets `missing` if one of
  // them does not exist yet.
  double ready(const Op& op, std::size_t& missing) const;
  void send(const Op& op, double end);
  void wake_readers(const Op& op, std::size_t id);

  const Instance& in_;
  std::vector<double> ends_;
  std::vector<double> arrived_[2];  // over links with a bandwidth: by edge, then microbatch
  std::vector<double> link_free_;
  std::vector<std::size_t> next_;  // by rank
  std::vector<std::size_t> waits_for_;
  std::vector<double> now_;
  std::vector<double> first_;
  std::vector<double> held_;
  std::vector<double> peak_;
  std::vector<int32_t> awake_;
};

}  // namespace stagecraft::plan
