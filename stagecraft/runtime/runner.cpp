#include "stagecraft/runtime/runner.h"

#include <algorithm>
#include <utility>

#include "stagecraft/base/check.h"
#include "stagecraft/runtime/executor.h"
#include "stagecraft/runtime/gathered_rank.h"
#include "stagecraft/runtime/results.h"
#include "stagecraft/runtime/step_counter.h"
#include "stagecraft/runtime/step_meeting.h"
#include "stagecraft/runtime/wiring.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {

namespace {

// In the order of the placement. ArgumentError unless they are just those of the rank.
std::vector<Stage> sort_own_stages(std::vector<Stage> stages, const Placement& placement,
                                   Rank rank) {
  const std::span<const StageId> expected = placement.stages(rank);
  std::sort(stages.begin(), stages.end(),
            [](const Stage& a, const Stage& b) { return a.index() < b.index(); });
  std::vector<int32_t> wanted;
  std::vector<int32_t> got;
  for (const StageId stage : expected) wanted.push_back(stage.value());
  for (const Stage& stage : stages) got.push_back(stage.index().value());
  require<ArgumentError>(got == wanted, "rank {}: the schedule puts stages {} here, got {}",
                         rank.value(), wanted, got);
  for (const Stage& stage : stages) {
    require<ArgumentError>(stage.num_stages() == placement.num_stages(),
                           "stage {} is one of {}, the schedule has {}", stage.index().value(),
                           stage.num_stages(), placement.num_stages());
  }
  return stages;
}

ReplicaPlace place_of(const Transport& transport, const Placement& placement,
                      const RunnerOptions& options) {
  const int32_t ranks = placement.num_ranks();
  require<ArgumentError>(options.replicas >= 1, "expected at least one replica, got {}",
                         options.replicas);
  require<ArgumentError>(
      transport.num_ranks() == ranks * options.replicas,
      "the schedule is for {} ranks{}, the world has {}", ranks,
      options.replicas > 1 ? fmt::format(" in each of {} replicas", options.replicas) : "",
      transport.num_ranks());
  return {.self = transport.rank(), .ranks = ranks, .replicas = options.replicas};
}

}  // namespace

class Runner::Impl {
 public:
  Impl(Transport& transport, ScheduleSource source, std::vector<Stage> stages,
       RunnerOptions options)
      : transport_(transport),
        source_(std::move(source)),
        options_(std::move(options)),
        place_(place_of(transport, source_.placement(), options_)),
        stages_(sort_own_stages(std::move(stages), source_.placement(), place_.own())),
        wiring_(ports_or_chain(options_.ports, source_.placement().num_stages()),
                source_.placement(), place_),
        graph_(stage_graph_of(wiring_.ports())),
        seed_(options_.seed.value_or(default_seed())),
        executor_(transport, place_, wiring_, stages_, options_.loss, callbacks_, options_.ties,
                  source_.placement(),
                  {.timeout = options_.timeout,
                   .wait_for_sends = options_.wait_for_sends,
                   .replicas = options_.replicas}) {
    require_wait(options_.timeout);
  }

  // `make_batch` may throw too: what goes wrong on one rank, at whatever point, all ranks hear of.
  template <typename MakeBatch>
  StepResult run(MakeBatch&& make_batch, const StepOptions& options, bool is_training) {
    executor_.publish_progress();
    if (must_recover_) recover();
    counter_.next_id();
    // From here on this rank is in the step: if another has failed it already, it has failed here.
    must_recover_ = true;
    meeting_ = nullptr;
    if (const auto reason = transport_.abort_reason()) {
      executor_.announce_lost();
      throw PeerError(reason->message, reason->rank, reason->cause);
    }
    try {
      if (is_training) check_grad_mode();
      Microbatches batch = make_batch();
      const std::vector<StepAnnouncement> ranks = meet(batch, options, is_training);
      execute(batch, options, is_training);
      StepResult result = take_result(executor_, options, has_last_stage());
      share(result, options, ranks);
      counter_.complete(is_training);
      executor_.commit();
      must_recover_ = false;
      return result;
    } catch (const TimeoutError& error) {
      if (meeting_ == nullptr) {
        abandon();  // the executor has named the action
        throw;
      }
      // Another rank may have missed its deadline too, and told of it first.
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

  // All ranks meet, and go on with the same number, whatever each has counted.
  void recover() {
    transport_.recover(deadline());
    for (const c10::IValue& id :
         transport_.all_gather(static_cast<int64_t>(counter_.last_id()), deadline())) {
      counter_.advance_to(static_cast<uint64_t>(id.toInt()));
    }
    has_agreed_ = false;  // perhaps not all had
    must_recover_ = false;
  }

  RecordedRun gather() {
    require<ArgumentError>(last_schedule_ != nullptr,
                           "there is no recording before the first step");
    const auto nanoseconds = [](Recorder::Time time) {
      return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
    };
    transport_.barrier(deadline());
    GatheredRank own{.recording = executor_.recorder().view(),
                     .zero = nanoseconds(executor_.recorder().zero()),
                     .met = nanoseconds(Recorder::Clock::now()),
                     .memory = memory_};
    for (const Stage& stage : stages_) own.stages.push_back(state_of(stage));
    std::vector<GatheredRank> ranks;
    const std::vector<c10::IValue> all = transport_.all_gather(to_value(own), deadline());
    for (Rank r(0); r.value() < place_.ranks; ++r) {
      ranks.push_back(gathered_rank_of(all[static_cast<std::size_t>(place_.in_world(r).value())]));
    }
    align(ranks);
    return merge(std::move(ranks));
  }

  int32_t replica() const { return place_.replica(); }
  Executor& executor() { return executor_; }
  Callbacks& callbacks() { return callbacks_; }
  StepCounter& counter() { return counter_; }
  Stage& stage(StageId stage) {
    const int32_t local = stage.value() >= 0 && stage.value() < source_.placement().num_stages()
                              ? wiring_.local_index(stage)
                              : -1;
    require<ArgumentError>(local >= 0, "stage {} is not on rank {}", stage.value(),
                           transport_.rank().value());
    return stages_[static_cast<std::size_t>(local)];
  }

 private:
  Deadline deadline() const {
    return Deadline::after(std::chrono::duration_cast<Deadline::Clock::duration>(options_.timeout));
  }
  bool has_last_stage() const { return !stages_.empty() && stages_.back().is_last(); }

  // What went wrong here is told to the others, if they do not know.
  void abandon() {
    executor_.abandon();
    if (std::exchange(all_know_, false) || transport_.abort_reason() != nullptr) return;
    const Rank rank = transport_.rank();
    Rank culprit = rank;
    std::string what = "something that is no std::exception was thrown";
    try {
      throw;
    } catch (const PeerError& error) {
      // Of a rank that had left before, which aborts nothing.
      what = error.what();
      if (error.peer().value() < transport_.num_ranks()) culprit = error.peer();
    } catch (const std::exception& error) {
      what = error.what();
    } catch (...) {
    }
    if (culprit == rank) what = fmt::format("rank {}: {}", rank.value(), what);
    transport_.abort({culprit, what, std::current_exception()});
  }

  // A difference is the same error on every rank, and none has to be told.
  std::vector<StepAnnouncement> meet(Microbatches& batch, const StepOptions& options,
                                     bool is_training) {
    try {
      return agree_on_step(batch, options, is_training);
    } catch (const MetadataError&) {
      all_know_ = true;
      throw;
    }
  }

  // Finds the schedule of the step, compares it with what the other ranks are about to do, and
  // turns shares of this replica's rows into shares of all.
  std::vector<StepAnnouncement> agree_on_step(Microbatches& batch, const StepOptions& options,
                                              bool is_training) {
    meeting_ = "at the beginning of the step";
    if (!has_agreed_) {
      const ProgressMark::Waiting waiting(executor_.progress(), "all ranks to begin");
      handshake(transport_, pipeline_facts(source_, stages_, wiring_.ports(), options_, seed_),
                deadline());
      has_agreed_ = true;
    }
    const auto microbatches = num_microbatches(batch, options);
    auto schedule = is_training ? source_.training(microbatches, graph_)
                                : source_.forward_only(microbatches, graph_);
    if (schedule != last_schedule_) schedule_checksum_ = checksum_of(*schedule);
    last_schedule_ = std::move(schedule);
    const ProgressMark::Waiting waiting(executor_.progress(), "all ranks to begin the step");
    std::vector<StepAnnouncement> ranks = announce_step(transport_,
                                                        {.is_training = is_training,
                                                         .microbatches = microbatches,
                                                         .draw = counter_.draw(is_training),
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
    executor_.run({.schedule = last_schedule_.get(),
                   .batch = &batch,
                   .options = &options,
                   .is_training = is_training,
                   .step = counter_.last_id(),
                   .seed = seed_,
                   .draw = counter_.draw(is_training),
                   .zero = Recorder::Clock::now(),
                   .meter = meter ? &*meter : nullptr});
    if (is_training && meter) memory_.assign(executor_.memory().begin(), executor_.memory().end());
  }

  RecordedRun merge(std::vector<GatheredRank> ranks) const {
    const Placement& placement = source_.placement();
    const auto stages = static_cast<std::size_t>(placement.num_stages());
    RecordedRun run{.recording = {*last_schedule_, graph_, {}}, .schedule_name = source_.name()};
    run.stages.resize(stages);
    const bool has_memory = std::all_of(ranks.begin(), ranks.end(), [](const GatheredRank& rank) {
      return rank.memory.size() == rank.stages.size();
    });
    if (has_memory) run.memory.resize(stages);
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      const auto own = placement.stages(Rank(static_cast<int32_t>(r)));
      for (std::size_t i = 0; i < own.size(); ++i) {
        const auto s = static_cast<std::size_t>(own[i].value());
        run.stages[s] = std::move(ranks[r].stages[i]);
        if (has_memory) run.memory[s] = ranks[r].memory[i];
      }
      run.recording.ranks.push_back(std::move(ranks[r].recording));
    }
    return run;
  }

  // All ranks end a step together: a failure anywhere is one everywhere. Then the rank of the last
  // stage has the losses of all replicas and sends what others of its own asked for.
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
    const StageId last(source_.placement().num_stages() - 1);
    const Rank owner = place_.in_world(source_.placement().get_rank(last));
    const Rank self = transport_.rank();
    auto id = [&](Rank reader) {
      return TransferId{counter_.last_id(), Direction::kResult, last, last,
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
    // Nobody goes on, and perhaps fails the next step, while another still takes its results.
    const bool any =
        std::any_of(ranks.begin(), ranks.end(), [](const auto& rank) { return rank.everywhere; });
    if (any) transport_.barrier(deadline());
  }

  void gather_losses(StepResult& result) {
    StepResult own;
    if (has_last_stage()) {
      own.losses = result.losses;
      own.weights = result.weights;
    }
    const std::vector<c10::IValue> all =
        transport_.all_gather(stagecraft::to_value(own), deadline());
    if (!has_last_stage()) return;
    result.losses.clear();
    result.weights.clear();
    for (int32_t replica = 0; replica < place_.replicas; ++replica) {
      const StepResult each =
          result_of(all[static_cast<std::size_t>(place_.twin(replica).value())]);
      // Those of other processes, and of other devices, are copies.
      for (const at::Tensor& loss : each.losses) {
        result.losses.push_back(own.losses.empty() ? loss : loss.to(own.losses.front().device()));
      }
      result.weights.insert(result.weights.end(), each.weights.begin(), each.weights.end());
    }
  }

  Transport& transport_;
  ScheduleSource source_;
  RunnerOptions options_;
  ReplicaPlace place_;
  std::vector<Stage> stages_;
  Wiring wiring_;
  StageGraph graph_;
  Callbacks callbacks_;
  uint64_t seed_;
  Executor executor_;
  StepCounter counter_;
  bool must_recover_ = false;
  bool has_agreed_ = false;
  bool all_know_ = false;          // of what is thrown
  const char* meeting_ = nullptr;  // where all ranks meet; nullptr in the actions between
  uint64_t schedule_checksum_ = 0;
  std::shared_ptr<const Schedule> last_schedule_;
  std::vector<StageMemory> memory_;  // of the last step that measured it
};

Runner::Runner(Transport& transport, ScheduleSource source, std::vector<Stage> stages,
               RunnerOptions options)
    : impl_(std::make_unique<Impl>(transport, std::move(source), std::move(stages),
                                   std::move(options))) {}

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
  return impl_->counter().completed();
}

void Runner::set_completed_steps(uint64_t steps) {
  impl_->counter().set_completed(steps);
}

void Runner::recover() {
  impl_->recover();
}

Callbacks& Runner::callbacks() {
  return impl_->callbacks();
}

Stage& Runner::stage(StageId stage) {
  return impl_->stage(stage);
}

int32_t Runner::replica() const {
  return impl_->replica();
}

const RankRecording& Runner::recording() const {
  return impl_->executor().recorder().view();
}

Recording Runner::gather_recording() {
  return impl_->gather().recording;
}

RecordedRun Runner::gather_run() {
  return impl_->gather();
}

}  // namespace stagecraft
