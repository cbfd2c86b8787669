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
#include "stagecraft/partition/pipe.h"
#include "stagecraft/runtime/results.h"
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

std::vector<Stage> stages_of_rank(const Transport& transport, const Pipe& pipe,
                                  const Placement& placement) {
  std::vector<Stage> stages;
  for (const StageId stage :
       placement.stages(Rank(transport.rank().value() % placement.num_ranks()))) {
    stages.push_back(pipe.build_stage(stage));
  }
  return stages;
}

}  // namespace

class Runner::Impl {
 public:
  Impl(Transport& transport, ScheduleSource source, std::vector<Stage> stages,
       PipelineOptions options)
      : transport_(transport),
        core_(std::move(options), std::move(source)),
        driver_(core_, transport, std::move(stages)),
        executor_(driver_.executor()),
        place_(driver_.place()) {
    if (core_.options.threads_per_rank) set_operator_threads(*core_.options.threads_per_rank);
  }

  // A failure at any point on this rank, also in `make_batch`, reaches all ranks.
  template <typename MakeBatch>
  StepResult run(MakeBatch&& make_batch, const StepOptions& options, bool is_training) {
    executor_.publish_progress();
    if (must_recover_) recover();
    core_.counter.next_id();
    // From here on this rank takes part in the step. A failure on another rank is one here.
    must_recover_ = true;
    meeting_ = nullptr;
    if (const auto reason = transport_.abort_reason()) {
      executor_.announce_lost();
      throw PeerError(reason->message, reason->rank, reason->cause);
    }
    try {
      if (is_training) check_grad_mode();
      Microbatches batch = make_batch();
      core_.check_inputs(batch);
      const std::vector<StepAnnouncement> ranks = meet(batch, options, is_training);
      execute(batch, options, is_training);
      StepResult result = take_result(executor_, options, driver_.has_last_stage());
      share(result, options, ranks);
      core_.counter.complete(is_training);
      driver_.commit(is_training);
      must_recover_ = false;
      return result;
    } catch (const TimeoutError& error) {
      if (meeting_ == nullptr) {
        abandon();  // the message of the executor names the action
        throw;
      }
      // A different rank may have missed its deadline, too, and may have aborted first.
      const TimeoutError named(
          fmt::format("rank {}, {}: {}", transport_.rank().value(), meeting_, error.what()));
      executor_.announce_and_abort(named);
      executor_.abandon();
      throw named;
    } catch (const PeerError&) {
      executor_.announce_lost();
      abandon();
      throw;
    } catch (...) {
      abandon();
      throw;
    }
  }

  // All ranks continue with the same step number, the largest of theirs.
  void recover() {
    transport_.recover(deadline());
    for (const c10::IValue& id :
         transport_.all_gather(static_cast<int64_t>(core_.counter.last_id()), deadline())) {
      core_.counter.advance_to(static_cast<uint64_t>(id.toInt()));
    }
    has_agreed_ = false;  // some ranks may not have completed the comparison
    must_recover_ = false;
  }

  RecordedRun recorded_run() {
    core_.require_step();
    // Ranks leave a barrier at about the same time, which aligns their clocks.
    transport_.barrier(deadline());
    const GatheredRank own = driver_.recorded();
    std::vector<GatheredRank> ranks;
    const std::vector<c10::IValue> all = transport_.all_gather(to_value(own), deadline());
    for (Rank r(0); r.value() < place_.ranks; ++r) {
      ranks.push_back(gathered_rank_of(all[static_cast<std::size_t>(place_.in_world(r).value())]));
    }
    align(ranks);
    return core_.merge(std::move(ranks));
  }

  PipelineCore& core() { return core_; }
  StepDriver& driver() { return driver_; }

 private:
  Deadline deadline() const {
    return Deadline::after(
        std::chrono::duration_cast<Deadline::Clock::duration>(core_.options.timeout));
  }

  // Called in a catch block. Aborts the world, unless the other ranks know of the failure.
  void abandon() {
    executor_.abandon();
    if (std::exchange(all_know_, false) || transport_.abort_reason() != nullptr) return;
    const Rank rank = transport_.rank();
    Rank culprit = rank;
    std::string what = "unknown exception (not derived from std::exception)";
    try {
      throw;
    } catch (const PeerError& error) {
      // The peer had left before. That alone aborts nothing.
      what = error.what();
      if (error.peer().value() < transport_.num_ranks()) culprit = error.peer();
    } catch (const std::exception& error) {
      what = error.what();
    } catch (...) {
    }
    if (culprit == rank) what = fmt::format("rank {}: {}", rank.value(), what);
    transport_.abort({culprit, what, std::current_exception()});
  }

  // A mismatch throws the same error on every rank, so no rank has to be notified.
  std::vector<StepAnnouncement> meet(Microbatches& batch, const StepOptions& options,
                                     bool is_training) {
    try {
      return agree_on_step(batch, options, is_training);
    } catch (const MetadataError&) {
      all_know_ = true;
      throw;
    }
  }

  // Chooses the schedule of the step, compares it with the other ranks, and scales weights that are
  // shares of this replica's rows to shares of all rows.
  std::vector<StepAnnouncement> agree_on_step(Microbatches& batch, const StepOptions& options,
                                              bool is_training) {
    meeting_ = "at the beginning of the step";
    if (!has_agreed_) {
      const ProgressMark::Waiting waiting(executor_.progress(), "all ranks to begin");
      compare_pipelines(transport_, core_, driver_.stages(), deadline());
      has_agreed_ = true;
    }
    const std::shared_ptr<const Schedule> before = core_.schedule;
    core_.choose_schedule(batch, options, is_training);
    if (core_.schedule != before) schedule_checksum_ = checksum_of(*core_.schedule);
    const ProgressMark::Waiting waiting(executor_.progress(), "all ranks to begin the step");
    std::vector<StepAnnouncement> ranks =
        announce_step(transport_,
                      {.is_training = is_training,
                       .microbatches = core_.schedule->num_microbatches(),
                       .draw = core_.counter.draw(is_training),
                       .schedule = schedule_checksum_,
                       .everywhere = options.everywhere,
                       .rows = batch.rows.value_or(-1)},
                      deadline());
    if (place_.replicas > 1 && batch.rows) {
      const double share = share_of_replica(ranks, place_);
      for (double& weight : batch.weights) weight *= share;
    }
    return ranks;
  }

  void execute(const Microbatches& batch, const StepOptions& options, bool is_training) {
    meeting_ = nullptr;
    std::optional<MemoryMeter> meter;
    if (options.measure_memory) meter.emplace(transport_.num_ranks() + 1);
    executor_.run(core_.plan(batch, options, is_training, meter ? &*meter : nullptr));
  }

  // All ranks end a step together, so that a failure on one rank is one on all. Then the rank of
  // the last stage has the losses of all replicas, and sends results to the ranks that asked for
  // them.
  void share(StepResult& result, const StepOptions& options,
             std::span<const StepAnnouncement> ranks) {
    meeting_ = "at the end of the step";
    {
      const ProgressMark::Waiting waiting(executor_.progress(), "all ranks to end the step");
      if (place_.replicas == 1) {
        transport_.barrier(deadline());
      } else {
        gather_losses(result);
      }
    }
    const StageId last(core_.placement().num_stages() - 1);
    const Rank owner = place_.in_world(core_.placement().get_rank(last));
    const Rank self = transport_.rank();
    auto id = [&](Rank reader) {
      return TransferId{core_.counter.last_id(), Direction::kResult, last, last,
                        MicrobatchId(reader.value())};
    };
    const ProgressMark::Waiting waiting(executor_.progress(), "results of the step");
    if (self == owner) {
      std::vector<PendingPtr> sends;
      for (Rank own(0); own.value() < place_.ranks; ++own) {
        const Rank reader = place_.in_world(own);
        if (reader == owner || !ranks[static_cast<std::size_t>(reader.value())].everywhere)
          continue;
        sends.push_back(transport_.post_send(reader, id(reader), stagecraft::to_value(result)));
      }
      for (const PendingPtr& send : sends) transport_.wait_send(send, deadline());
    } else if (options.everywhere) {
      const PendingPtr receive = transport_.post_receive(owner, id(self));
      std::vector<at::Tensor> added = std::move(result.added_losses);
      result = result_of(transport_.wait_receive(receive, deadline()).value);
      result.added_losses = std::move(added);
    }
    // No rank continues, and perhaps fails the next step, while another rank takes its results.
    const bool any =
        std::any_of(ranks.begin(), ranks.end(), [](const auto& rank) { return rank.everywhere; });
    if (any) transport_.barrier(deadline());
  }

  void gather_losses(StepResult& result) {
    StepResult own;
    if (driver_.has_last_stage()) {
      own.losses = result.losses;
      own.weights = result.weights;
    }
    const std::vector<c10::IValue> all =
        transport_.all_gather(stagecraft::to_value(own), deadline());
    if (!driver_.has_last_stage()) return;
    result.losses.clear();
    result.weights.clear();
    for (int32_t replica = 0; replica < place_.replicas; ++replica) {
      const StepResult each =
          result_of(all[static_cast<std::size_t>(place_.twin(replica).value())]);
      // Losses of other processes and devices are copies.
      for (const at::Tensor& loss : each.losses) {
        result.losses.push_back(own.losses.empty() ? loss : loss.to(own.losses.front().device()));
      }
      result.weights.insert(result.weights.end(), each.weights.begin(), each.weights.end());
    }
  }

  Transport& transport_;
  PipelineCore core_;
  StepDriver driver_;
  Executor& executor_;
  const ReplicaPlace& place_;
  bool must_recover_ = false;
  bool has_agreed_ = false;
  bool all_know_ = false;          // the error that is thrown
  const char* meeting_ = nullptr;  // the current collective; nullptr during actions
  uint64_t schedule_checksum_ = 0;
};

Runner::Runner(Transport& transport, ScheduleSource source, std::vector<Stage> stages,
               PipelineOptions options) {
  require<ArgumentError>(
      !options.source.has_value(),
      "a Runner has one schedule source, but PipelineOptions::source is set, too");
  source = source_for(source, options.schedule, options.ranks, source.placement().num_stages());
  impl_ =
      std::make_unique<Impl>(transport, std::move(source), std::move(stages), std::move(options));
}

Runner::Runner(Transport& transport, const Pipe& pipe, PipelineOptions options) {
  ScheduleSource source = source_of_world(transport, pipe, options);
  std::vector<Stage> stages = stages_of_rank(transport, pipe, source.placement());
  impl_ = std::make_unique<Impl>(transport, std::move(source), std::move(stages),
                                 options_for(pipe, std::move(options)));
}

Runner::~Runner() = default;

StepResult Runner::step(const Args& args, const Kwargs& kwargs, const c10::IValue& target,
                        const StepOptions& options) {
  return impl_->run([&] { return split_batch(args, kwargs, target, options); }, options, true);
}

StepResult Runner::step(Microbatches batch, const StepOptions& options) {
  return impl_->run([&] { return complete_batch(std::move(batch), options); }, options, true);
}

StepResult Runner::eval(const Args& args, const Kwargs& kwargs, const c10::IValue& target,
                        const StepOptions& options) {
  return impl_->run([&] { return split_batch(args, kwargs, target, options); }, options, false);
}

StepResult Runner::eval(Microbatches batch, const StepOptions& options) {
  return impl_->run([&] { return complete_batch(std::move(batch), options); }, options, false);
}

uint64_t Runner::completed_steps() const {
  return impl_->core().counter.completed();
}

void Runner::set_completed_steps(uint64_t steps) {
  impl_->core().counter.set_completed(steps);
}

void Runner::recover() {
  impl_->recover();
}

Callbacks& Runner::callbacks() {
  return impl_->core().callbacks;
}

const Placement& Runner::placement() const {
  return impl_->core().placement();
}

Stage& Runner::stage(StageId stage) {
  return impl_->driver().stage(stage);
}

std::vector<at::Tensor> Runner::parameters() const {
  std::vector<at::Tensor> all;
  for (const Stage& stage : impl_->driver().stages()) add_parameters(stage, all);
  return all;
}

int32_t Runner::replica() const {
  return impl_->driver().place().replica();
}

const RankRecording& Runner::recording() const {
  return impl_->driver().executor().recorder().view();
}

RecordedRun Runner::recorded_run() {
  return impl_->recorded_run();
}

MemoryEstimate Runner::peak_memory_estimate(int32_t microbatches) {
  return impl_->core().estimate(microbatches, recorded_run().memory);
}

}  // namespace stagecraft
