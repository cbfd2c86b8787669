#include "stagecraft/runtime/measure_run.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "stagecraft/base/check.h"
#include "stagecraft/runtime/measure_support.h"
#include "stagecraft/runtime/measured_memory.h"
#include "stagecraft/runtime/pipeline.h"
#include "stagecraft/runtime/record/report.h"
#include "stagecraft/runtime/record/stage_times.h"
#include "stagecraft/runtime/runner.h"

namespace stagecraft {
namespace {

constexpr double kMilliseconds = 1e-3;

/// Times of one type of action of one stage: a list for each step, by microbatch.
class ActionTimes {
 public:
  void add(const std::vector<double>& step, double factor) {
    by_position_.resize(std::max(by_position_.size(), step.size()));
    for (std::size_t i = 0; i < step.size(); ++i) by_position_[i].push_back(factor * step[i]);
  }

  /// Nothing for a type that did not run.
  std::optional<double> value() const {
    if (by_position_.empty()) return std::nullopt;
    double sum = 0;
    for (const std::vector<double>& each : by_position_) sum += detail::median_of(each);
    return kMilliseconds * sum / static_cast<double>(by_position_.size());
  }

 private:
  std::vector<std::vector<double>> by_position_;
};

struct StageActions {
  ActionTimes forward;
  ActionTimes input;
  ActionTimes weight;
  ActionTimes backward;
};

class RunTimes {
 public:
  explicit RunTimes(int32_t stages) : stages_(static_cast<std::size_t>(stages)) {}

  void add(const Recording& recording) {
    const StepReport report = make_report(recording);
    const std::vector<StageTimes> times = stage_times(recording);
    makespans_.push_back(kMilliseconds * report.makespan);
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      const Rank rank = recording.schedule.placement().get_rank(StageId(static_cast<int32_t>(s)));
      const RankReport& own = report.ranks[rank.position()];
      // Sends and bookkeeping delay the next action as much as a longer action would.
      const double factor = own.compute > 0 ? (own.compute + own.other) / own.compute : 1;
      stages_[s].forward.add(times[s].forward, factor);
      stages_[s].input.add(times[s].backward_input, factor);
      stages_[s].weight.add(times[s].backward_weight, factor);
      stages_[s].backward.add(times[s].backward, factor);
    }
  }

  double makespan() const { return detail::median_of(makespans_); }
  const std::vector<StageActions>& stages() const { return stages_; }

 private:
  std::vector<StageActions> stages_;
  std::vector<double> makespans_;
};

std::vector<double> rank_peaks(const RecordedRun& run) {
  std::vector<double> peaks;
  for (const RankRecording& rank : run.recording.ranks) {
    peaks.push_back(static_cast<double>(rank.held_before + rank.peak_memory.value_or(0)));
  }
  for (std::size_t s = 0; s < run.stages.size(); ++s) {
    const Rank rank = run.recording.schedule.placement().get_rank(StageId(static_cast<int32_t>(s)));
    peaks[rank.position()] += 2.0 * static_cast<double>(run.stages[s].gradient_bytes);
  }
  return peaks;
}

std::unique_ptr<PipelineBase> make_pipeline(const Pipe& pipe, PipelineOptions options,
                                            Transport* transport) {
  if (transport != nullptr) return std::make_unique<Runner>(*transport, pipe, std::move(options));
  return std::make_unique<Pipeline>(pipe, std::move(options));
}

}  // namespace

MeasuredRun measure_run(const Pipe& pipe, const Schedule& schedule,
                        const std::vector<bool>& recompute, const Loss& loss,
                        const Microbatches& batch, const MeasureOptions& options,
                        Transport* transport) {
  require<ArgumentError>(!batch.inputs.empty(), "measuring a run needs at least one microbatch");
  const std::unique_ptr<PipelineBase> run =
      make_pipeline(pipe,
                    {.source = ScheduleSource::fixed(schedule),
                     .loss = loss,
                     .seed = 0,
                     .threads_per_rank = options.threads_per_rank},
                    transport);
  const Placement& placement = schedule.placement();
  for (std::size_t s = 0; s < recompute.size(); ++s) {
    const StageId stage(static_cast<int32_t>(s));
    const bool here = transport == nullptr || placement.get_rank(stage) == transport->rank();
    if (here && recompute[s]) run->stage(stage).set_recompute(true);
  }
  detail::record_device_time(*run);
  RunTimes times(pipe.num_stages());
  std::optional<RecordedRun> with_memory;
  int32_t counted = 0;
  double spent = 0;  // by the recordings, which all ranks share
  for (int32_t i = 0; counted < options.steps; ++i) {
    run->step(detail::some_microbatches(batch, schedule.num_microbatches()),
              {.outputs = OutputMode::kNone, .measure_memory = i == 1});
    const RecordedRun recorded = run->recorded_run();
    spent += make_report(recorded.recording).makespan;
    if (i == 1) with_memory = recorded;
    const bool is_late = spent > static_cast<double>(options.time_limit.count());
    if (i < 2 || (i <= options.warm_up && !is_late)) continue;
    times.add(recorded.recording);
    ++counted;
    if (is_late) break;
  }
  detail::clear_gradients(*run);

  MeasuredRun result;
  result.step = times.makespan();
  result.peaks = rank_peaks(*with_memory);
  for (std::size_t s = 0; s < times.stages().size(); ++s) {
    const StageActions& actions = times.stages()[s];
    MeasuredStage& stage = result.stages.emplace_back();
    stage.forward = actions.forward.value();
    stage.backward_input = actions.input.value();
    stage.backward_weight = actions.weight.value();
    stage.backward = actions.backward.value();
    if (!with_memory->memory.empty()) detail::set_run_memory(stage, with_memory->memory[s]);
  }
  return result;
}

}  // namespace stagecraft
