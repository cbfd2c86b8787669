#include "stagecraft/runtime/runner.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
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
#include "stagecraft/runtime/step_meeting.h"

namespace stagecraft {

namespace {

ScheduleSource source_of_world(const Transport& transport, const Pipe& pipe,
                               const PipelineOptions& options) {
  const int32_t all = transport.num_ranks();
  require<ArgumentError>(options.replicas >= 1 && all % options.replicas == 0,
                         "a world of {} ranks cannot hold {} replicas of equal size", all,
                         options.replicas);
  return source_for(options.source, options.schedule,
                    options.ranks.value_or(all / options.replicas), pipe.num_stages());
}

ScheduleSource checked_source(const ScheduleSource& source, const PipelineOptions& options) {
  require_no_stage_options(options);
  require<ArgumentError>(
      !options.source.has_value(),
      "a Runner has one schedule source, but PipelineOptions::source is set, too");
  return source_for(source, options.schedule, options.ranks, source.placement().num_stages());
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
      share(result, step, ranks);
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
    } catch (const PeerError&) {
      executor_.announcer().announce_lost();
      abandon();
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
  void recover() {
    require_no_step();
    transport_.recover(deadline());
    transport_.set_needs_recovery(false);
    for (const c10::IValue& id :
         transport_.all_gather(static_cast<int64_t>(counter.last_id()), deadline())) {
      counter.advance_to(static_cast<uint64_t>(id.toInt()));
    }
    state_.move_to(State::kNew);
  }

  const std::shared_ptr<ParameterShards>& shards() const { return driver_->shards(); }

  void gather_weights() {
    require_no_step();
    if (!shards() || shards()->kind() == ShardKind::kParameters) return;
    between_steps([&] {
      shards()->gather(transport_, deadline());
      // The caller may write to parameters, which no replica may still read.
      transport_.barrier(deadline());
    });
  }

  void with_whole_parameters(const std::function<void()>& body) {
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

  MeasuredLookahead fit_unshard_lookahead() {
    require_no_step();
    require<ArgumentError>(shards() && shards()->kind() == ShardKind::kParameters,
                           "weights that are not sharded are not gathered: set "
                           "PipelineOptions::shard to kParameters, with several replicas");
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

  void set_unshard_lookahead(const std::vector<int32_t>& lookahead) {
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
      if (transport_.abort_reason() == nullptr) {
        const Rank rank = transport_.rank();
        transport_.abort(
            {rank, fmt::format("rank {}: {}", rank.value(), describe(std::current_exception())),
             std::current_exception()});
      }
      throw;
    }
  }

  void require_no_step() const {
    require<ArgumentError>(!state_.is_in_step(),
                           "a step of this runner is in progress: its callbacks cannot call step, "
                           "eval, recover or recorded_run");
  }

  // Called in a catch block. Aborts the world, unless it is aborted already.
  void abandon() {
    executor_.abandon();
    if (transport_.abort_reason() != nullptr) return;
    const Rank rank = transport_.rank();
    Rank culprit = rank;
    std::string what = describe(std::current_exception());
    try {
      throw;
    } catch (const PeerError& error) {
      // The peer had left before. That alone aborts nothing.
      if (error.peer().value() < transport_.num_ranks()) culprit = error.peer();
    } catch (...) {
    }
    if (culprit == rank) what = fmt::format("rank {}: {}", rank.value(), what);
    transport_.abort({culprit, what, std::current_exception()});
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
    choose_schedule(batch, step, is_training);
    if (schedule != before) schedule_checksum_ = checksum_of(*schedule);
    const ProgressMark::Waiting waiting(executor_.progress(), "all ranks to begin the step");
    std::vector<StepAnnouncement> ranks = announce_step(
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
    if (place_.replicas > 1 && batch.rows) {
      const double share = share_of_replica(ranks, place_);
      for (double& weight : batch.weights) weight *= share;
    }
    return ranks;
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

  // All ranks end a step together, so that a failure on one rank is a failure on all. Then the rank
  // of the last stage has the losses of all replicas, and sends results to the ranks that asked for
  // them.
  void share(StepResult& result, const StepOptions& step, std::span<const StepAnnouncement> ranks) {
    state_.move_to(State::kEnding);
    {
      const ProgressMark::Waiting waiting(executor_.progress(), "all ranks to end the step");
      if (place_.replicas == 1) {
        transport_.barrier(deadline());
      } else {
        gather_losses(result);
      }
    }
    const StageId last(placement().num_stages() - 1);
    const Rank owner = place_.in_world(placement().get_rank(last));
    const Rank self = transport_.rank();
    auto id = [&](Rank reader) {
      return TransferId{counter.last_id(), Direction::kResult, last, last,
                        MicrobatchId(reader.value())};
    };
    const ProgressMark::Waiting waiting(executor_.progress(), "results of the step");
    if (self == owner) {
      std::vector<PendingPtr> sends;
      for (Rank own(0); own.value() < place_.ranks; ++own) {
        const Rank reader = place_.in_world(own);
        if (reader == owner || !ranks[reader.position()].everywhere) continue;
        sends.push_back(transport_.post_send(reader, id(reader), stagecraft::to_value(result)));
      }
      for (const PendingPtr& send : sends) transport_.wait_send(send, deadline());
    } else if (step.everywhere) {
      const PendingPtr receive = transport_.post_receive(owner, id(self));
      std::vector<at::Tensor> added = std::move(result.added_losses);
      result = result_of(transport_.wait_receive(receive, deadline()).value);
      result.added_losses = std::move(added);
    }
    // No rank continues, and perhaps fails the next step, while a different rank still takes its
    // results.
    const bool any =
        std::any_of(ranks.begin(), ranks.end(), [](const auto& rank) { return rank.everywhere; });
    if (any) transport_.barrier(deadline());
  }

  void gather_losses(StepResult& result) {
    StepResult own;
    if (driver_->has_last_stage()) {
      own.losses = result.losses;
      own.weights = result.weights;
    }
    const std::vector<c10::IValue> all =
        transport_.all_gather(stagecraft::to_value(own), deadline());
    if (!driver_->has_last_stage()) return;
    result.losses.clear();
    result.weights.clear();
    for (int32_t replica = 0; replica < place_.replicas; ++replica) {
      const StepResult each = result_of(all[place_.in_replica(replica).position()]);
      // Losses of other processes and devices are copies.
      for (const at::Tensor& loss : each.losses) {
        result.losses.push_back(own.losses.empty() ? loss : loss.to(own.losses.front().device()));
      }
      result.weights.insert(result.weights.end(), each.weights.begin(), each.weights.end());
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

Runner::Runner(Transport& transport, const ScheduleSource& source, std::vector<Stage> stages,
               PipelineOptions options)
    : PipelineBase([&] {
        ScheduleSource checked = checked_source(source, options);
        return std::make_unique<Impl>(transport, std::move(checked), std::move(stages),
                                      std::move(options));
      }()) {}

Runner::Runner(Transport& transport, const Pipe& pipe, PipelineOptions options)
    : PipelineBase([&] {
        ScheduleSource source = source_of_world(transport, pipe, options);
        std::vector<Stage> stages = stages_of_rank(transport, pipe, source.placement(), options);
        return std::make_unique<Impl>(transport, std::move(source), std::move(stages),
                                      options_for(pipe, std::move(options)));
      }()) {}

void Runner::recover() {
  static_cast<Impl&>(*core_).recover();
}

const std::shared_ptr<ParameterShards>& Runner::shards() const {
  return static_cast<const Impl&>(*core_).shards();
}

void Runner::gather_weights() {
  static_cast<Impl&>(*core_).gather_weights();
}

void Runner::with_whole_parameters(const std::function<void()>& body) {
  static_cast<Impl&>(*core_).with_whole_parameters(body);
}

MeasuredLookahead Runner::fit_unshard_lookahead() {
  return static_cast<Impl&>(*core_).fit_unshard_lookahead();
}

void Runner::set_unshard_lookahead(const std::vector<int32_t>& lookahead) {
  static_cast<Impl&>(*core_).set_unshard_lookahead(lookahead);
}

int32_t Runner::replica() const {
  return core_->drivers().front()->place().replica();
}

const RankRecording& Runner::recording() const {
  return core_->drivers().front()->executor().recorded();
}

}  // namespace stagecraft
