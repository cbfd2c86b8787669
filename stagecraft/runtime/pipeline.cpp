#include "stagecraft/runtime/pipeline.h"

#include <algorithm>
#include <array>
#include <exception>
#include <functional>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>

#include "stagecraft/base/check.h"
#include "stagecraft/partition/pipe.h"
#include "stagecraft/runtime/executor.h"
#include "stagecraft/runtime/rank_threads.h"
#include "stagecraft/runtime/results.h"
#include "stagecraft/runtime/step_counter.h"
#include "stagecraft/runtime/wiring.h"
#include "stagecraft/transport/local/local_world.h"

namespace stagecraft {

namespace {

void sort_all_stages(std::vector<Stage>& stages, int32_t expected) {
  require<ArgumentError>(static_cast<int32_t>(stages.size()) == expected,
                         "the schedule has {} stages, got {}", expected, stages.size());
  std::sort(stages.begin(), stages.end(),
            [](const Stage& a, const Stage& b) { return a.index() < b.index(); });
  for (std::size_t i = 0; i < stages.size(); ++i) {
    require<ArgumentError>(
        stages[i].index().value() == static_cast<int32_t>(i) && stages[i].num_stages() == expected,
        "expected stage {} of {}, got stage {} of {}", i, expected, stages[i].index().value(),
        stages[i].num_stages());
  }
}

// Copies are exchanged; one tensor in two places would be counted twice.
void check_copies(const std::vector<TiedWeight>& ties, const std::vector<Stage>& stages) {
  for (const TiedWeight& tie : ties) {
    std::vector<at::Tensor> seen;
    for (const ParameterRef& ref : tie) {
      const auto s = static_cast<std::size_t>(ref.stage.value());
      if (ref.stage.value() < 0 || s >= stages.size()) continue;  // refused later, by its rank
      for (const auto& [name, parameter] : stages[s].parameters()) {
        if (name != ref.name) continue;
        for (const at::Tensor& other : seen) {
          require<ArgumentError>(!other.is_same(parameter),
                                 "a tied weight: \"{}\" of stage {} is the very tensor of another "
                                 "stage and needs no entry",
                                 name, ref.stage.value());
        }
        seen.push_back(parameter);
      }
    }
  }
}

PipelineOptions with_wiring(PipelineOptions options, const Pipe& pipe) {
  if (!options.ports) options.ports = pipe.ports();
  if (options.ties.empty()) options.ties = pipe.ties();
  return options;
}

// Casts that autocast keeps for a step would otherwise outlive the weights they are of.
void forget_casts() {
  at::autocast::clear_cache();
}

}  // namespace

class Pipeline::Impl {
 public:
  Impl(std::vector<Stage> stages, PipelineOptions options)
      : options_(std::move(options)),
        source_(source_for(options_.source, options_.schedule, options_.ranks,
                           static_cast<int32_t>(stages.size()))),
        ports_(ports_or_chain(options_.ports, source_.placement().num_stages())),
        graph_(stage_graph_of(ports_)),
        seed_(options_.seed.value_or(default_seed())),
        world_(source_.placement().num_ranks(), {.zero_buffering = options_.zero_buffering}) {
    require_wait(options_.timeout);
    require<ArgumentError>(options_.threads_per_rank.value_or(1) >= 1,
                           "expected at least one thread for each rank, got {}",
                           options_.threads_per_rank.value_or(1));
    sort_all_stages(stages, source_.placement().num_stages());
    check_copies(options_.ties, stages);
    for (int32_t r = 0; r < num_ranks(); ++r) {
      std::vector<Stage> own;
      for (const StageId stage : placement().stages(Rank(r))) {
        own.push_back(std::move(stages[static_cast<std::size_t>(stage.value())]));
      }
      ranks_.push_back(std::make_unique<RankState>(*this, Rank(r), std::move(own)));
    }
    if (num_ranks() > 1) start_threads();
  }

  StepResult run(const Microbatches& batch, const StepOptions& options, bool is_training) {
    if (is_training) check_grad_mode();
    if (check_) std::ranges::for_each(batch.inputs, check_);
    const auto microbatches = num_microbatches(batch, options);
    last_schedule_ = is_training ? source_.training(microbatches, graph_)
                                 : source_.forward_only(microbatches, graph_);
    std::optional<MemoryMeter> meter;
    if (options.measure_memory) meter.emplace(num_ranks() + 1);
    const StepPlan plan{.schedule = last_schedule_.get(),
                        .batch = &batch,
                        .options = &options,
                        .is_training = is_training,
                        .step = counter_.next_id(),
                        .seed = seed_,
                        .draw = counter_.draw(is_training),
                        .zero = Recorder::Clock::now(),
                        .meter = meter ? &*meter : nullptr};
    execute(plan);
    if (is_training && options.measure_memory) keep_memory();
    try {
      StepResult result = collect(options);
      if (is_training) check_loss(result);
      for (const auto& rank : ranks_) rank->executor.commit();
      counter_.complete(is_training);
      return result;
    } catch (...) {
      for (const auto& rank : ranks_) rank->executor.abandon();
      throw;
    }
  }

  /// What the arguments of every microbatch must pass before a step.
  void set_check(std::function<void(const Arguments&)> check) { check_ = std::move(check); }
  StepCounter& counter() { return counter_; }
  int32_t num_ranks() const { return placement().num_ranks(); }
  const Placement& placement() const { return source_.placement(); }
  Callbacks& callbacks() { return callbacks_; }

  Stage& stage(StageId stage) {
    const Rank rank = placement().get_rank(stage);
    RankState& state = *ranks_[static_cast<std::size_t>(rank.value())];
    return state.stages[static_cast<std::size_t>(state.wiring.local_index(stage))];
  }

  Recording recording() const {
    require<ArgumentError>(last_schedule_ != nullptr,
                           "there is no recording before the first step");
    Recording recording{*last_schedule_, graph_, {}};
    for (const auto& rank : ranks_) recording.ranks.push_back(rank->executor.recorder().view());
    return recording;
  }

  const std::string& schedule_name() const { return source_.name(); }
  std::span<const StageMemory> stage_memory() const { return memory_; }

  MemoryEstimate estimate(int32_t microbatches) const {
    require<ArgumentError>(!memory_.empty(),
                           "an estimate needs a step with StepOptions::measure_memory first");
    return estimate_memory(*source_.training(microbatches, graph_), memory_);
  }

 private:
  struct RankState {
    RankState(Impl& impl, Rank rank, std::vector<Stage> own)
        : stages(std::move(own)),
          place{.self = rank, .ranks = impl.placement().num_ranks()},
          wiring(impl.ports_, impl.placement(), place),
          executor(
              impl.world_.transport(rank), place, wiring, stages, impl.options_.loss,
              impl.callbacks_, impl.options_.ties, impl.placement(),
              {.timeout = impl.options_.timeout, .wait_for_sends = impl.options_.zero_buffering}) {
      executor.publish_progress();
    }

    std::vector<Stage> stages;
    ReplicaPlace place;
    Wiring wiring;
    Executor executor;
  };

  void start_threads() {
    const int32_t own = at::get_num_threads();
    const int32_t each = options_.threads_per_rank.value_or(std::max(1, own / num_ranks()));
    threads_ = std::make_unique<RankThreads>(num_ranks(), [each](Rank) {
      // A thread takes over the process's number at its first look, so look before setting it.
      at::get_num_threads();
      at::set_num_threads(each);
    });
    threads_->run([](Rank) {});
    at::set_num_threads(own);
  }

  void execute(const StepPlan& plan) {
    std::vector<std::exception_ptr> thrown;
    if (threads_ == nullptr) {
      try {
        ranks_.front()->executor.run(plan);
      } catch (...) {
        thrown.push_back(std::current_exception());
      }
    } else {
      const at::ThreadLocalState state;
      thrown = threads_->run([&](Rank rank) {
        const at::ThreadLocalStateGuard guard(state);
        try {
          ranks_[static_cast<std::size_t>(rank.value())]->executor.run(plan);
        } catch (...) {
          forget_casts();
          throw;
        }
        forget_casts();
      });
    }
    if (std::any_of(thrown.begin(), thrown.end(), [](const auto& t) { return t != nullptr; })) {
      fail(thrown);
    }
  }

  // Puts everything back and throws what the first failing rank threw.
  [[noreturn]] void fail(const std::vector<std::exception_ptr>& thrown) {
    const auto reason = world_.transport(Rank(0)).abort_reason();
    std::exception_ptr first = reason != nullptr ? reason->cause : nullptr;
    for (const auto& each : thrown) {
      if (first == nullptr) first = each;
    }
    auto recover = [&](Rank rank) {
      ranks_[static_cast<std::size_t>(rank.value())]->executor.abandon();
      world_.transport(rank).recover(Deadline::after(std::chrono::seconds(30)));
    };
    if (threads_ == nullptr) {
      recover(Rank(0));
    } else {
      threads_->run(recover);
    }
    std::rethrow_exception(first);
  }

  void keep_memory() {
    std::vector<StageMemory> memory(static_cast<std::size_t>(placement().num_stages()));
    for (const auto& rank : ranks_) {
      for (const StageMemory& stage : rank->executor.memory()) {
        memory[static_cast<std::size_t>(stage.stage.value())] = stage;
      }
    }
    memory_ = std::move(memory);
  }

  StepResult collect(const StepOptions& options) {
    const Rank owner = placement().get_rank(StageId(placement().num_stages() - 1));
    StepResult result;
    std::vector<std::vector<at::Tensor>> added;
    for (int32_t r = 0; r < num_ranks(); ++r) {
      StepResult own =
          take_result(ranks_[static_cast<std::size_t>(r)]->executor, options, Rank(r) == owner);
      added.push_back(std::move(own.added_losses));
      if (Rank(r) == owner) result = std::move(own);
    }
    result.added_losses = sum_by_microbatch(added);
    return result;
  }

  // Without one there was nothing to run backward from.
  void check_loss(const StepResult& result) const {
    const bool has_added = std::any_of(result.added_losses.begin(), result.added_losses.end(),
                                       [](const at::Tensor& loss) { return loss.defined(); });
    require<ArgumentError>(options_.loss || has_added,
                           "step: there is no loss, so nothing was trained; give "
                           "PipelineOptions::loss, or call eval for the outputs alone");
  }

  static std::vector<at::Tensor> sum_by_microbatch(
      const std::vector<std::vector<at::Tensor>>& by_rank) {
    std::vector<at::Tensor> sums(by_rank.front().size());
    for (const auto& tensors : by_rank) {
      for (std::size_t m = 0; m < sums.size(); ++m) {
        if (!tensors[m].defined()) continue;
        sums[m] =
            sums[m].defined() ? at::add(sums[m], tensors[m].to(sums[m].device())) : tensors[m];
      }
    }
    return sums;
  }

  std::function<void(const Arguments&)> check_;
  PipelineOptions options_;
  ScheduleSource source_;
  Ports ports_;
  StageGraph graph_;
  Callbacks callbacks_;
  uint64_t seed_;
  LocalWorld world_;
  std::vector<std::unique_ptr<RankState>> ranks_;
  std::unique_ptr<RankThreads> threads_;
  StepCounter counter_;
  std::shared_ptr<const Schedule> last_schedule_;
  std::vector<StageMemory> memory_;  // by stage
};

Pipeline::Pipeline(std::vector<Stage> stages, PipelineOptions options)
    : impl_(std::make_unique<Impl>(std::move(stages), std::move(options))) {}

Pipeline::Pipeline(const Pipe& pipe, PipelineOptions options)
    : Pipeline(pipe.build_stages(), with_wiring(std::move(options), pipe)) {
  // A stage sees its own inputs alone; some conditions are on those of several.
  if (pipe.graph().parts().guards.empty()) return;
  impl_->set_check([pipe](const Arguments& each) { pipe.check_arguments(each.args, each.kwargs); });
}

Pipeline::~Pipeline() = default;
Pipeline::Pipeline(Pipeline&&) noexcept = default;
Pipeline& Pipeline::operator=(Pipeline&&) noexcept = default;

StepResult Pipeline::step(const Args& args, const Kwargs& kwargs, const c10::IValue& target,
                          const StepOptions& options) {
  return impl_->run(split_batch(args, kwargs, target, options), options, true);
}

StepResult Pipeline::step(Microbatches batch, const StepOptions& options) {
  return impl_->run(complete_batch(std::move(batch), options), options, true);
}

StepResult Pipeline::eval(const Args& args, const Kwargs& kwargs, const c10::IValue& target,
                          const StepOptions& options) {
  return impl_->run(split_batch(args, kwargs, target, options), options, false);
}

StepResult Pipeline::eval(Microbatches batch, const StepOptions& options) {
  return impl_->run(complete_batch(std::move(batch), options), options, false);
}

uint64_t Pipeline::completed_steps() const {
  return impl_->counter().completed();
}

void Pipeline::set_completed_steps(uint64_t steps) {
  impl_->counter().set_completed(steps);
}

int32_t Pipeline::num_ranks() const {
  return impl_->num_ranks();
}

int32_t Pipeline::num_stages() const {
  return impl_->placement().num_stages();
}

const Placement& Pipeline::placement() const {
  return impl_->placement();
}

Stage& Pipeline::stage(StageId stage) {
  return impl_->stage(stage);
}

const Stage& Pipeline::stage(StageId stage) const {
  return impl_->stage(stage);
}

const std::string& Pipeline::schedule_name() const {
  return impl_->schedule_name();
}

std::span<const StageMemory> Pipeline::stage_memory() const {
  return impl_->stage_memory();
}

std::vector<at::Tensor> Pipeline::parameters() const {
  std::vector<at::Tensor> all;
  for (int32_t s = 0; s < num_stages(); ++s) {
    for (const auto& [name, parameter] : stage(StageId(s)).parameters()) {
      const bool is_known = std::any_of(
          all.begin(), all.end(),
          [&parameter = parameter](const at::Tensor& other) { return other.is_same(parameter); });
      if (!is_known) all.push_back(parameter);
    }
  }
  return all;
}

Callbacks& Pipeline::callbacks() {
  return impl_->callbacks();
}

Recording Pipeline::recording() const {
  return impl_->recording();
}

StepReport Pipeline::report() const {
  return make_report(impl_->recording());
}

MemoryEstimate Pipeline::peak_memory_estimate(int32_t microbatches) const {
  return impl_->estimate(microbatches);
}

}  // namespace stagecraft
