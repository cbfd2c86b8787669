#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "stagecraft/schedule/passes/lower.h"
#include "stagecraft/schedule/placement.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"

namespace stagecraft {

/// The schedules of a pipeline, one for each number of microbatches. A schedule is built and
/// lowered when a step first needs it, and then cached. Thread-safe; ranks may share a source.
///
///   ScheduleSource::named("1F1B", 4)                   four ranks, a stage each
///   ScheduleSource::named("Interleaved1F1B", 4, 2)     four ranks, two stages each
///   ScheduleSource::fixed(parse_csv(text))             exactly this schedule
///   ScheduleSource::made_by([](int32_t m) { return ...; }, placement)   those of your function
///
/// A schedule of computations is lowered before it is executed, for steps and evals, with the
/// options of `lowering` if there are any:
///
///   ScheduleSource::named("1F1B", 4, 1, LowerOptions{.max_sends = 2})
///
/// A schedule that is lowered already is executed unchanged. ArgumentError for options that do not
/// fit the number of ranks, and for options together with a schedule that is lowered already.
class ScheduleSource {
 public:
  /// The schedules of a builder. By default each rank has the builder's default number of stages,
  /// one or two. ArgumentError for an unknown name.
  static ScheduleSource named(const std::string& name, int32_t ranks,
                              std::optional<int32_t> stages_per_rank = std::nullopt,
                              std::optional<LowerOptions> lowering = std::nullopt);
  /// One schedule, for its number of microbatches only.
  static ScheduleSource fixed(Schedule schedule,
                              std::optional<LowerOptions> lowering = std::nullopt);
  /// The schedules that `make` returns, all with `placement`. It is called once for each number of
  /// microbatches, and again for a new lookahead, by one thread at a time.
  static ScheduleSource made_by(std::function<Schedule(int32_t microbatches)> make,
                                Placement placement,
                                std::optional<LowerOptions> lowering = std::nullopt);

  const Placement& placement() const { return placement_; }
  const std::string& name() const { return name_; }
  /// The most stages of a rank that are unsharded at a time (LowerOptions::max_active_stages).
  int32_t max_active_stages() const;

  /// The schedule, lowered and verified for a stage graph. ArgumentError for a number of
  /// microbatches that the schedule does not support, ScheduleError if the schedule is invalid.
  std::shared_ptr<const Schedule> training(int32_t microbatches, const StageGraph& graph) const;
  /// The forwards of the schedule alone, in the same order on each rank.
  std::shared_ptr<const Schedule> forward_only(int32_t microbatches, const StageGraph& graph) const;

  /// The computations of training, for find_unshard_lookahead (sim/unshard_lookahead.h).
  /// ArgumentError if the schedule unshards its stages itself, so that its lookahead is fixed.
  Schedule without_unshard(int32_t microbatches) const;
  /// The same schedules, in which each rank unshards that many stages ahead
  /// (LowerOptions::unshard_lookahead). ArgumentError for numbers that do not fit.
  ScheduleSource with_lookahead(std::vector<int32_t> lookahead) const;

 private:
  struct Entry {
    int32_t microbatches;
    bool is_training;
    UnshardLookahead lookahead;
    StageGraph graph;
    std::shared_ptr<const Schedule> schedule;
  };
  struct Cache {
    std::mutex mutex;
    std::vector<Entry> entries;
  };

  ScheduleSource(std::string name, Placement placement, std::function<Schedule(int32_t)> make,
                 std::optional<LowerOptions> lowering);
  Schedule make(int32_t microbatches) const;
  std::shared_ptr<const Schedule> get(int32_t microbatches, bool is_training,
                                      const StageGraph& graph) const;

  std::string name_;
  Placement placement_;
  std::function<Schedule(int32_t)> make_;
  std::optional<LowerOptions> lowering_;
  std::shared_ptr<Cache> cache_ = std::make_shared<Cache>();
};

/// The schedules of a pipeline with `stages` stages: `source` if it is set, otherwise those of the
/// named builder, lowered with `lowering`. Without `ranks`, every rank has the builder's default
/// number of stages. ArgumentError for a number of ranks that does not fit.
ScheduleSource source_for(const std::optional<ScheduleSource>& source, const std::string& name,
                          std::optional<int32_t> ranks, int32_t stages,
                          const std::optional<LowerOptions>& lowering = std::nullopt);

}  // namespace stagecraft
