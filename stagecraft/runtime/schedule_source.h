#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "stagecraft/schedule/placement.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"

namespace stagecraft {

/// The schedules of a pipeline: how many microbatches there are is a matter of each step, so there
/// is one for each number that comes, made and lowered once. Thread-safe; ranks may share one.
///
///   ScheduleSource::named("1F1B", 4)                       four ranks, a stage each
///   ScheduleSource::named("Interleaved1F1B", 4, 2)         four ranks, two stages each
///   ScheduleSource::fixed(parse_csv(text))                 that one and no other
///   ScheduleSource::made_by([](int32_t m) { return ...; }) your own
class ScheduleSource {
 public:
  /// A builder's; with as many stages a rank as it has by default, one or two. ArgumentError for a
  /// name that there is none of.
  static ScheduleSource named(std::string name, int32_t ranks,
                              std::optional<int32_t> stages_per_rank = std::nullopt);
  /// For just as many microbatches as it has. A compute schedule is lowered; one that is lowered
  /// already is run as it is.
  static ScheduleSource fixed(Schedule schedule);
  /// `placement` of all that it makes; it is asked once for each number of microbatches.
  static ScheduleSource made_by(std::function<Schedule(int32_t microbatches)> make,
                                Placement placement);

  const Placement& placement() const { return placement_; }
  const std::string& name() const { return name_; }

  /// Lowered and verified for a stage graph. ArgumentError for a number of microbatches that the
  /// schedule cannot have, ScheduleError when it is not good.
  std::shared_ptr<const Schedule> training(int32_t microbatches, const StageGraph& graph) const;
  /// Its forwards alone, in the same order on each rank.
  std::shared_ptr<const Schedule> forward_only(int32_t microbatches, const StageGraph& graph) const;

 private:
  struct Entry {
    int32_t microbatches;
    bool is_training;
    StageGraph graph;
    std::shared_ptr<const Schedule> schedule;
  };
  struct Cache {
    std::mutex mutex;
    std::vector<Entry> entries;
  };

  ScheduleSource(std::string name, Placement placement, std::function<Schedule(int32_t)> make);
  std::shared_ptr<const Schedule> get(int32_t microbatches, bool is_training,
                                      const StageGraph& graph) const;

  std::string name_;
  Placement placement_;
  std::function<Schedule(int32_t)> make_;
  std::shared_ptr<Cache> cache_ = std::make_shared<Cache>();
};

/// What a pipeline of so many stages runs: `source` where there is one, otherwise the schedule of
/// that name, on so many ranks or as many as it deals the stages out to. ArgumentError for ranks
/// that do not fit.
ScheduleSource source_for(const std::optional<ScheduleSource>& source, const std::string& name,
                          std::optional<int32_t> ranks, int32_t stages);

}  // namespace stagecraft
