#include "stagecraft/runtime/schedule_source.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "stagecraft/base/check.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/load.h"
#include "stagecraft/schedule/passes/keep_forwards.h"
#include "stagecraft/schedule/passes/pass_input.h"
#include "stagecraft/schedule/verify.h"

namespace stagecraft {

namespace {

void require_compute(const Schedule& schedule) {
  require<ArgumentError>(
      schedule.level() == Level::kCompute,
      "the schedule is lowered already, so it cannot be lowered with LowerOptions; pass a schedule "
      "of computations, or no options");
}

}  // namespace

ScheduleSource::ScheduleSource(std::string name, Placement placement,
                               std::function<Schedule(int32_t)> make,
                               std::optional<LowerOptions> lowering)
    : name_(std::move(name)),
      placement_(std::move(placement)),
      make_(std::move(make)),
      lowering_(std::move(lowering)) {
  if (!lowering_) return;
  // The smallest schedule for these ranks shows whether the options fit.
  LowerOptions options = *lowering_;
  options.mode = std::nullopt;
  lower(build_schedule("GPipe", {.ranks = placement_.num_ranks(), .microbatches = 1}), options);
}

ScheduleSource ScheduleSource::named(const std::string& name, int32_t ranks,
                                     std::optional<int32_t> stages_per_rank,
                                     std::optional<LowerOptions> lowering) {
  const ScheduleKind& kind = get_schedule_kind(name);
  const int32_t per_rank = stages_per_rank.value_or(kind.default_stages_per_rank);
  auto make = [&kind, ranks, per_rank](int32_t microbatches) {
    return kind.build({.ranks = ranks, .microbatches = microbatches, .stages_per_rank = per_rank});
  };
  // The placement of the stages does not depend on the number of microbatches.
  return {std::string(kind.name), make(kind.min_microbatches(ranks, per_rank)).placement(), make,
          std::move(lowering)};
}

ScheduleSource ScheduleSource::fixed(Schedule schedule, std::optional<LowerOptions> lowering) {
  if (lowering) require_compute(schedule);
  Placement placement = schedule.placement();
  auto make = [schedule = std::move(schedule)](int32_t microbatches) {
    require<ArgumentError>(microbatches == schedule.num_microbatches(),
                           "the schedule is for {} microbatches, got {}",
                           schedule.num_microbatches(), microbatches);
    return schedule;
  };
  return {"own schedule", std::move(placement), std::move(make), std::move(lowering)};
}

ScheduleSource ScheduleSource::made_by(std::function<Schedule(int32_t)> make, Placement placement,
                                       std::optional<LowerOptions> lowering) {
  require<ArgumentError>(static_cast<bool>(make), "a schedule source needs a function");
  return {"own schedule", std::move(placement), std::move(make), std::move(lowering)};
}

std::shared_ptr<const Schedule> ScheduleSource::training(int32_t microbatches,
                                                         const StageGraph& graph) const {
  return get(microbatches, true, graph);
}

std::shared_ptr<const Schedule> ScheduleSource::forward_only(int32_t microbatches,
                                                             const StageGraph& graph) const {
  return get(microbatches, false, graph);
}

int32_t ScheduleSource::max_active_stages() const {
  return lowering_ ? lowering_->max_active_stages : kDefaultActiveStages;
}

Schedule ScheduleSource::without_unshard(int32_t microbatches) const {
  const std::lock_guard lock(cache_->mutex);
  Schedule made = make(microbatches);
  require<ArgumentError>(
      made.level() == Level::kCompute &&
          !has_any(made, {ActionType::kUnshard, ActionType::kReshard}),
      "the schedule says itself where stages are unsharded, so its lookahead is fixed: pass a "
      "schedule of computations without UNSHARD and RESHARD");
  return made;
}

ScheduleSource ScheduleSource::with_lookahead(std::vector<int32_t> lookahead) const {
  LowerOptions options = lowering_.value_or(LowerOptions());
  options.unshard_lookahead = std::move(lookahead);
  ScheduleSource source(name_, placement_, make_, std::move(options));
  source.cache_ = cache_;
  return source;
}

Schedule ScheduleSource::make(int32_t microbatches) const {
  Schedule made = make_(microbatches);
  require<ArgumentError>(
      made.placement() == placement_,
      "the schedule for {} microbatches has a different placement: expected {}, got {}",
      microbatches, to_string(placement_), to_string(made.placement()));
  require<ArgumentError>(made.num_microbatches() == microbatches,
                         "expected a schedule of {} microbatches, got one of {}", microbatches,
                         made.num_microbatches());
  return made;
}

std::shared_ptr<const Schedule> ScheduleSource::get(int32_t microbatches, bool is_training,
                                                    const StageGraph& graph) const {
  LowerOptions options = lowering_.value_or(LowerOptions());
  const std::lock_guard lock(cache_->mutex);
  for (const Entry& entry : cache_->entries) {
    if (entry.microbatches == microbatches && entry.is_training == is_training &&
        entry.lookahead == options.unshard_lookahead && entry.graph == graph) {
      return entry.schedule;
    }
  }
  Schedule made = make(microbatches);
  require<ArgumentError>(!is_training || infer_mode(made) != VerifyMode::kForwardOnly,
                         "the schedule has only forwards, which train nothing; call eval instead");
  if (lowering_) require_compute(made);
  if (!is_training) {
    made = keep_forwards(made);
    options.mode = std::nullopt;  // the given mode is for training
  }
  auto schedule =
      std::make_shared<const Schedule>(at_level(std::move(made), Level::kLowered, graph, options));
  cache_->entries.push_back(
      {microbatches, is_training, options.unshard_lookahead, graph, schedule});
  return schedule;
}

ScheduleSource source_for(const std::optional<ScheduleSource>& source, const std::string& name,
                          std::optional<int32_t> ranks, int32_t stages,
                          const std::optional<LowerOptions>& lowering) {
  if (source) {
    const int32_t own = source->placement().num_ranks();
    require<ArgumentError>(ranks.value_or(own) == own,
                           "the schedule is for {} ranks, but PipelineOptions::ranks is {}", own,
                           ranks.value_or(own));
    return *source;
  }
  const int32_t per_rank = get_schedule_kind(name).default_stages_per_rank;
  const int32_t count = ranks.value_or(std::max(1, stages / per_rank));
  require<ArgumentError>(count >= 1 && stages % count == 0,
                         "{} stages cannot be placed evenly on {} ranks; for an uneven placement, "
                         "set PipelineOptions::source",
                         stages, count);
  return ScheduleSource::named(name, count, stages / count, lowering);
}

}  // namespace stagecraft
