#include "stagecraft/runtime/runner.h"

#include <algorithm>
#include <utility>

#include "stagecraft/base/check.h"
#include "stagecraft/runtime/executor.h"
#include "stagecraft/runtime/gathered_rank.h"
#include "stagecraft/runtime/results.h"
#include "stagecraft/runtime/step_counter.h"
#include "stagecraft/runtime/wiring.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {

namespace {

// In the order of the placement. ArgumentError unless they are just those of the rank.
std::vector<Stage> sort_stages(std::vector<Stage> stages, const Placement& placement, Rank rank) {
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

}  // namespace

class Runner::Impl {
 public:
  Impl(Transport& transport, ScheduleSource source, std::vector<Stage> stages,
       RunnerOptions options)
      : transport_(transport),
        source_(std::move(source)),
        options_(std::move(options)),
        stages_(sort_stages(std::move(stages), source_.placement(), transport.rank())),
        wiring_(ports_or_chain(options_.ports, source_.placement().num_stages()),
                source_.placement(), transport.rank()),
        graph_(stage_graph_of(wiring_.ports())),
        seed_(options_.seed.value_or(default_seed())),
        executor_(transport, wiring_, stages_, options_.loss, callbacks_, options_.ties,
                  source_.placement(),
                  {.timeout = options_.timeout, .wait_for_sends = options_.wait_for_sends}) {
    require_wait(options_.timeout);
    require<ArgumentError>(transport.num_ranks() == source_.placement().num_ranks(),
                           "the schedule is for {} ranks, the world has {}",
                           source_.placement().num_ranks(), transport.num_ranks());
  }

  // `make_batch` may throw too: what goes wrong on one rank, at whatever point, all ranks hear of.
  template <typename MakeBatch>
  StepResult run(MakeBatch&& make_batch, const StepOptions& options, bool is_training) {
    if (must_recover_) recover();
    counter_.next_id();
    // From here on this rank is in the step: if another has failed it already, it has failed here.
    must_recover_ = true;
    if (const auto reason = transport_.abort_reason()) {
      throw PeerError(reason->message, reason->rank, reason->cause);
    }
    try {
      if (is_training) check_grad_mode();
      const Microbatches batch = make_batch();
      execute(batch, options, is_training);
      StepResult result = take_result(executor_, options, has_last_stage());
      share(result, options);
      counter_.complete(is_training);
      executor_.commit();
      must_recover_ = false;
      return result;
    } catch (const std::exception& error) {
      executor_.abandon();
      if (transport_.abort_reason() == nullptr) {
        const Rank rank = transport_.rank();
        transport_.abort({rank, fmt::format("rank {}: {}", rank.value(), error.what()),
                          std::current_exception()});
      }
      throw;
    }
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
    for (const c10::IValue& value : transport_.all_gather(to_value(own), deadline())) {
      ranks.push_back(gathered_rank_of(value));
    }
    align(ranks);
    return merge(std::move(ranks));
  }

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

  // All ranks meet, and go on with the same number, whatever each has counted.
  void recover() {
    transport_.recover(deadline());
    for (const c10::IValue& id :
         transport_.all_gather(static_cast<int64_t>(counter_.last_id()), deadline())) {
      counter_.advance_to(static_cast<uint64_t>(id.toInt()));
    }
  }

  void execute(const Microbatches& batch, const StepOptions& options, bool is_training) {
    const auto microbatches = num_microbatches(batch, options);
    last_schedule_ = is_training ? source_.training(microbatches, graph_)
                                 : source_.forward_only(microbatches, graph_);
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
  // stage sends what others asked for.
  void share(StepResult& result, const StepOptions& options) {
    const std::vector<c10::IValue> asks = transport_.all_gather(options.everywhere, deadline());
    const Placement& placement = source_.placement();
    const StageId last(placement.num_stages() - 1);
    const Rank owner = placement.get_rank(last);
    const Rank self = transport_.rank();
    auto id = [&](Rank reader) {
      return TransferId{counter_.last_id(), Direction::kResult, last, last,
                        MicrobatchId(reader.value())};
    };
    if (self == owner) {
      std::vector<PendingPtr> sends;
      for (int32_t r = 0; r < transport_.num_ranks(); ++r) {
        if (Rank(r) == owner || !asks[static_cast<std::size_t>(r)].toBool()) continue;
        sends.push_back(transport_.post_send(Rank(r), id(Rank(r)), stagecraft::to_value(result)));
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
        std::any_of(asks.begin(), asks.end(), [](const auto& ask) { return ask.toBool(); });
    if (any) transport_.barrier(deadline());
  }

  Transport& transport_;
  ScheduleSource source_;
  RunnerOptions options_;
  std::vector<Stage> stages_;
  Wiring wiring_;
  StageGraph graph_;
  Callbacks callbacks_;
  uint64_t seed_;
  Executor executor_;
  StepCounter counter_;
  bool must_recover_ = false;
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

Callbacks& Runner::callbacks() {
  return impl_->callbacks();
}

Stage& Runner::stage(StageId stage) {
  return impl_->stage(stage);
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
