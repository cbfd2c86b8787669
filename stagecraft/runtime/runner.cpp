#include "stagecraft/runtime/runner.h"

#include <chrono>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/error.h"
#include "stagecraft/partition/pipe.h"
#include "stagecraft/runtime/launch/action_launcher.h"
#include "stagecraft/runtime/launch/step_key.h"
#include "stagecraft/runtime/measure_lookahead.h"
#include "stagecraft/runtime/results.h"
#include "stagecraft/runtime/runner_state.h"
#include "stagecraft/runtime/step_driver.h"
#include "stagecraft/runtime/step_end.h"
#include "stagecraft/runtime/step_meeting.h"

namespace stagecraft {

namespace {

ScheduleSource source_of_world(const Transport& transport, int32_t num_stages,
                               const PipelineOptions& options) {
  if (options.source) {
    return source_for(options.source, options.schedule, options.ranks, num_stages);
  }
  const int32_t all = transport.num_ranks();
  require<ArgumentError>(options.replicas >= 1 && all % options.replicas == 0,
                         "a world of {} ranks cannot hold {} replicas of equal size", all,
                         options.replicas);
  return source_for(options.source, options.schedule,
                    options.ranks.value_or(all / options.replicas), num_stages);
}

int32_t num_stages_of(std::span<const Stage> stages, const PipelineOptions& options) {
  require_no_stage_options(options);
  if (options.source) return options.source->placement().num_stages();
  require<ArgumentError>(!stages.empty(), "a Runner has at least one stage, got none");
  return stages.front().num_stages();
}

std::vector<Stage> stages_of_rank(const Transport& transport, const Pipe& pipe,
                                  const Placement& placement, const PipelineOptions& options) {
  std::vector<Stage> stages;
  for (const StageId stage :
       placement.stages(Rank(transport.rank().value() % placement.num_ranks()))) {
    stages.push_back(build_stage(pipe, stage, options));
  }
  return stages;
}

}  // namespace

class Runner::Impl final : public PipelineCore {
 public:
  Impl(Transport& transport, ScheduleSource schedules, std::vector<Stage> stages,
       PipelineOptions given)
      : PipelineCore(std::move(given), std::move(schedules)),
        transport_(transport),
        driver_(std::make_unique<StepDriver>(*this, transport, std::move(stages))),
        executor_(driver_->executor()),
        place_(driver_->place()) {
    if (options.threads_per_rank) set_operator_threads(*options.threads_per_rank);
    launcher_ = detail::make_action_launcher(*this, *driver_, transport);
  }

  LaunchCounts launches() const override {
    return launcher_ ? launcher_->counts() : PipelineCore::launches();
  }

  // A failure at any point on this rank, also in `make_batch`, reaches all ranks.
  StepResult run(c10::function_ref<Microbatches()> make_batch, const StepOptions& step,
                 bool is_training) override {
    require_no_step();
    executor_.publish_progress();
    if (state_.is_failed() || transport_.needs_recovery()) recover();
    const bool is_new = state_.is_new();
    has_trained_ = false;
    counter.next_id();
    // From here on this rank takes part in the step. A failure on a different rank is a failure
    // here, too.
    state_.move_to(State::kPreparing);
    const FailUnlessEnded fail_unless_ended{state_, transport_};
    if (const auto reason = transport_.abort_reason()) {
      executor_.announcer().announce_lost();
      throw PeerError(reason->message, reason->rank, reason->cause);
    }
    try {
      if (is_training) check_grad_mode();
      Microbatches batch = make_batch();
      check_inputs(batch);
      const std::vector<StepAnnouncement> ranks = agree_on_step(batch, step, is_training, is_new);
      execute(batch, step, is_training, ranks);
      StepResult result = take_own_result(step);
      state_.move_to(State::kEnding);
      end_step({.transport = transport_,
                .progress = executor_.progress(),
                .place = place_,
                .placement = placement(),
                .step = counter.last_id(),
                .timeout = options.timeout},
               ranks, result);
      counter.complete(is_training);
      driver_->commit(is_training);
      state_.move_to(State::kReady);
      has_trained_ = is_training;
      return result;
    } catch (const TimeoutError& error) {
      if (state_.meeting() == nullptr) {
        abandon();  // the message of the executor names the action
        throw;
      }
      // A different rank may have missed its deadline, too, and may have aborted first.
      const TimeoutError named(fmt::format("rank {}, {}: {}", transport_.rank().value(),
                                           state_.meeting(), error.what()));
      executor_.announcer().announce_and_abort(named);
      executor_.abandon();
      throw named;
    } catch (const PeerError& error) {
      abandon_lost(error);
      throw;
    } catch (const MetadataError&) {
      // A mismatch throws the same error on every rank, so no rank has to be notified.
      state_.state() == State::kAgreeing ? executor_.abandon() : abandon();
      throw;
    } catch (...) {
      abandon();
      throw;
    }
  }

  // All ranks continue with the same step number, the largest of theirs.
  void recover() override {
    require_no_step();
    transport_.set_needs_recovery(true);
    transport_.recover(deadline());
    for (const c10::IValue& id :
         transport_.all_gather(static_cast<int64_t>(counter.last_id()), deadline())) {
      counter.advance_to(static_cast<uint64_t>(id.toInt()));
    }
    // A rank that failed to exchange the numbers recovers again.
    transport_.set_needs_recovery(false);
    state_.move_to(State::kNew);
  }

  void gather_weights() override {
    require_no_step();
    if (!shards() || shards()->kind() == ShardKind::kParameters) return;
    between_steps([&] {
      shards()->gather(transport_, deadline());
      // The caller may write to parameters, which no replica may still read.
      transport_.barrier(deadline());
    });
  }

  void with_whole_parameters(const std::function<void()>& body) override {
    require_no_step();
    if (!shards() || shards()->kind() != ShardKind::kParameters) return body();
    between_steps([&] {
      shards()->gather(transport_, deadline());
      // No replica writes its parameters while a different one still reads its piece.
      transport_.barrier(deadline());
      body();
      shards()->keep();
      shards()->release();
    });
  }

  MeasuredLookahead fit_unshard_lookahead() override {
    require_no_step();
    require_sharded_parameters();
    require<ArgumentError>(
        has_trained_,
        "the lookahead is found from the times of the last step, which must have "
        "trained");
    const Schedule computations = source.without_unshard(schedule->num_microbatches());
    const RecordedRun run = recorded_run();
    MeasuredLookahead found;
    between_steps([&] {
      found = measure_lookahead({.transport = transport_,
                                 .place = place_,
                                 .shards = *shards(),
                                 .timeout = options.timeout},
                                run.recording, computations, source.max_active_stages());
    });
    source = source.with_lookahead(found.lookahead);
    return found;
  }

  void set_unshard_lookahead(const std::vector<int32_t>& lookahead) override {
    require_no_step();
    source = source.with_lookahead(lookahead);
  }

  RecordedRun recorded_run() override {
    require_no_step();
    require_step();
    executor_.recorded();  // waits for the device
    // Ranks leave a barrier at about the same time, which aligns their clocks.
    transport_.barrier(deadline());
    const GatheredRank own = driver_->recorded();
    std::vector<GatheredRank> ranks;
    const std::vector<c10::IValue> all = transport_.all_gather(to_value(own), deadline());
    for (Rank r(0); r.value() < place_.ranks; ++r) {
      ranks.push_back(gathered_rank_of(all[place_.in_world(r).position()]));
    }
    align(ranks);
    return merge(std::move(ranks));
  }

  std::span<const std::unique_ptr<StepDriver>> drivers() const override { return {&driver_, 1}; }

 private:
  const std::shared_ptr<ParameterShards>& shards() const { return driver_->shards(); }

  using State = RunnerState::State;
  struct FailUnlessEnded {
    RunnerState& state;
    Transport& transport;
    ~FailUnlessEnded() {
      if (!state.is_in_step()) return;
      state.move_to(State::kFailed);
      transport.set_needs_recovery(true);
    }
  };

  Deadline deadline() const { return Deadline::after(options.timeout); }

  // A failure on one rank is a failure on all ranks, and the next step recovers.
  void between_steps(c10::function_ref<void()> body) {
    try {
      body();
    } catch (...) {
      shards()->release();
      transport_.set_needs_recovery(true);
      abort_with(std::current_exception());
      throw;
    }
  }

  void require_no_step() const {
    require<ArgumentError>(!state_.is_in_step(),
                           "a step of this runner is in progress: its callbacks cannot call step, "
                           "eval, recover or recorded_run");
  }

  // Aborts the world, unless the other ranks know of a failure.
  void abort_with(const std::exception_ptr& error) {
    if (transport_.abort_reason() == nullptr) {
      transport_.abort(reason_for(transport_.rank(), error));
    }
  }

  // Called in a catch block.
  void abandon() {
    executor_.abandon();
    abort_with(std::current_exception());
  }

  // A peer that had left before the step does not abort the world by itself, so this rank names it.
  void abandon_lost(const PeerError& error) {
    executor_.announcer().announce_lost();
    executor_.abandon();
    if (transport_.abort_reason() != nullptr) return;
    AbortReason reason = reason_for(transport_.rank(), std::current_exception());
    const bool is_of_world = error.peer().value() < transport_.num_ranks();
    if (is_of_world && error.peer() != reason.rank) {
      reason.rank = error.peer();
      reason.message = error.what();
    }
    transport_.abort(std::move(reason));
  }

  // Chooses the schedule of the step, compares it with the other ranks, and scales weights that are
  // shares of this replica's rows to shares of all rows.
  std::vector<StepAnnouncement> agree_on_step(Microbatches& batch, const StepOptions& step,
                                              bool is_training, bool is_new) {
    state_.move_to(State::kAgreeing);
    if (is_new) {
      const ProgressMark::Waiting waiting(executor_.progress(), "all ranks to begin");
      compare_pipelines(transport_, *this, driver_->stages(), shards().get(), deadline());
      // All ranks are connected before the first of them executes, because announce_step waits for
      // all.
      executor_.connect(deadline());
    }
    const std::shared_ptr<const Schedule> before = schedule;
    const uint64_t checksum_before = schedule_checksum_;
    choose_schedule(batch, step, is_training);
    if (schedule != before) schedule_checksum_ = checksum_of(*schedule);
    std::vector<StepAnnouncement> ranks;
    try {
      ranks = announce(batch, step, is_training);
    } catch (...) {
      // The recording is still that of the step before.
      schedule = before;
      schedule_checksum_ = checksum_before;
      throw;
    }
    if (place_.replicas > 1 && batch.rows) {
      const double share = share_of_replica(ranks, place_);
      for (double& weight : batch.weights) weight *= share;
    }
    return ranks;
  }

  std::vector<StepAnnouncement> announce(const Microbatches& batch, const StepOptions& step,
                                         bool is_training) {
    const ProgressMark::Waiting waiting(executor_.progress(), "all ranks to begin the step");
    return announce_step(
        transport_,
        {.is_training = is_training,
         .microbatches = schedule->num_microbatches(),
         .draw = counter.draw(is_training),
         .schedule = schedule_checksum_,
         .reduce_grads = step.reduce_grads || !is_training,
         .local_grads = is_training ? executor_.num_local_grads() : 0,
         .everywhere = step.everywhere,
         // Ranks without graphs announce their shapes, too, for ranks that have graphs.
         .shapes = options.graphs != GraphMode::kOff ? detail::checksum_of_shapes(batch, step) : 0,
         .rows = batch.rows.value_or(-1)},
        place_, deadline());
  }

  void execute(const Microbatches& batch, const StepOptions& step, bool is_training,
               std::span<const StepAnnouncement> ranks) {
    state_.move_to(State::kExecuting);
    std::optional<MemoryMeter> meter;
    if (step.measure_memory) meter.emplace(transport_.num_ranks() + 1);
    const StepPlan planned = plan(batch, step, is_training, meter ? &*meter : nullptr);
    if (launcher_) {
      // A rank in the middle has no batch: its shapes are those of the other ranks.
      uint64_t shapes = 0;
      for (const StepAnnouncement& rank : ranks)
        shapes = shapes * 0x9E3779B97F4A7C15U + rank.shapes;
      if (launcher_->launch(planned, shapes)) return;
    }
    executor_.run(planned);
  }

  StepResult take_own_result(const StepOptions& step) {
    try {
      return take_result(executor_, step, driver_->has_last_stage());
    } catch (...) {
      executor_.rethrow_explained();
    }
  }

  Transport& transport_;
  std::unique_ptr<StepDriver> driver_;
  Executor& executor_;
  const ReplicaPlace& place_;
  std::unique_ptr<detail::ActionLauncher> launcher_;  // null: every step is run
  RunnerState state_;
  uint64_t schedule_checksum_ = 0;
  bool has_trained_ = false;  // whether the last step trained and was complete
};

Runner::Runner(Transport& transport, std::vector<Stage> stages, PipelineOptions options)
    : PipelineBase([&] {
        ScheduleSource source = source_of_world(transport, num_stages_of(stages, options), options);
        return std::make_unique<Impl>(transport, std::move(source), std::move(stages),
                                      std::move(options));
      }()) {}

Runner::Runner(Transport& transport, const Pipe& pipe, PipelineOptions options)
    : PipelineBase([&] {
        ScheduleSource source = source_of_world(transport, pipe.num_stages(), options);
        std::vector<Stage> stages = stages_of_rank(transport, pipe, source.placement(), options);
        return std::make_unique<Impl>(transport, std::move(source), std::move(stages),
                                      options_for(pipe, std::move(options)));
      }()) {}

const RankRecording& Runner::rank_recording() const {
  return core_->drivers().front()->executor().recorded();
}

}  // namespace stagecraft
