#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "stagecraft/plan/instance.h"
#include "stagecraft/plan/random.h"
#include "stagecraft/plan/word.h"

namespace stagecraft::plan {

/// When actions are due, and how strictly. a(m) is the time when the work before microbatch m is
/// done, and T the busiest rank's time for one microbatch.
///
///   F   a(m) + first_pass * head(s)
///   I   a(m) + first_pass * head(S-1) + turn T + second_pass * (head of I(s) - head(S-1))
///   W   I's + weight_lag T
///
/// Backwards, from the end of the schedule, I takes the place of F and F that of I.
struct DueDates {
  bool backwards = false;
  double first_pass = 1;
  double second_pass = 1;
  double turn = 0;
  double weight_lag = 0;
  /// An action may delay one that is due earlier and known to come by this share of its own time.
  double tolerance = 0;
  /// An action may also delay one that is due earlier by at most this much, in units of the longest
  /// F.
  double eager = 0;
  /// The share of the cap that may be used.
  double memory_share = 1;
  /// A W may delay any action if waiting would make its rank the most idle of all.
  bool balance = false;
  /// The due dates of each kind and stage are shifted by a random time of up to this many T.
  /// `jitter_seed` determines the times.
  double jitter = 0;
  uint64_t jitter_seed = 0;
};

/// The fixed starts of a search, best first by experience.
std::vector<DueDates> fixed_starts(int32_t microbatches);
/// Random due dates.
DueDates random_dates(Random& random, int32_t microbatches);
/// Due dates near `dates`.
DueDates mutated(const DueDates& dates, Random& random);

/// List scheduling by due dates, in either direction of time. A free rank takes the action with the
/// earliest due date that satisfies two conditions: its memory fits together with that of all
/// actions that are due earlier on the rank, and it delays no action that is due earlier and known
/// to come. If there is none, the rank waits.
class Seeder {
 public:
  /// `in` must outlive it.
  explicit Seeder(const Instance& in);
  ~Seeder();

  /// Writes words that run. Returns false if memory prevents every remaining action.
  bool build(const DueDates& dates, Words& words);

 private:
  struct Candidate {
    double due = 0;
    double at = 0;
    double time = 0;
    int32_t kind = 0;
    int32_t stage = 0;
    int32_t k = 0;  // its number in the direction of time
  };
  struct Event {
    double time = 0;
    int32_t rank = 0;
  };

  void start(const DueDates& dates);
  void set_due_dates();
  double due(int32_t kind, int32_t stage, int32_t k) const { return base_[kind][stage] + at_[k]; }
  int32_t microbatch(int32_t k) const { return dates_.backwards ? in_.microbatches - 1 - k : k; }
  double size(int32_t k) const { return in_.size[microbatch(k)]; }
  void push(double time, int32_t rank);
  void collect_forward(int32_t rank, double now);
  void collect_backward(int32_t rank, double now);
  void offer(int32_t kind, int32_t stage, int32_t k, double at, double now);
  // The memory of F of other stages that are due before an F. A value above `room` means only that
  // it is above `room`.
  double reserved_forward(int32_t rank, int32_t stage, double due_date, double room) const;
  double reserved_backward(int32_t rank, double due_date, double room) const;
  double reserved_for_later(int32_t rank, int32_t after) const;
  const Candidate* choose(int32_t rank, double now, double& wake) const;
  void execute(const Candidate& chosen, int32_t rank, double now, Words& words);
  void pass_on(int32_t kind, int32_t stage, int32_t k, double end);
  void arrive(int32_t kind, int32_t stage, int32_t k, double at);

  const Instance& in_;
  double period_ = 0;  // T
  double longest_forward_ = 0;
  double eps_ = 0;
  std::vector<double> head_[2][2];  // direction; first and second pass
  DueDates dates_;
  double eager_ = 0;
  std::vector<double> base_[kKinds];
  std::vector<double> at_;
  std::vector<double> caps_;
  std::vector<double> headroom_;       // by rank: memory that actions need while they run
  std::vector<int32_t> done_[kKinds];  // by stage
  std::vector<double> arrival_[2];     // F, I; by stage, then k
  std::vector<int32_t> missing_[2];    // values that have not been made
  std::vector<double> free_at_;
  std::vector<double> idle_;  // since a rank's first action; -1 before it
  double most_idle_ = 0;
  std::vector<double> held_;
  std::vector<int64_t> left_;
  std::vector<Event> events_;
  std::vector<Candidate> now_;
  std::vector<Candidate> soon_;
};

}  // namespace stagecraft::plan
