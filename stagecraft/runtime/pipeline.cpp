#include "stagecraft/runtime/pipeline.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <optional>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>

#include "stagecraft/base/check.h"
#include "stagecraft/partition/pipe.h"
#include "stagecraft/runtime/launch/step_launcher.h"
#include "stagecraft/runtime/rank_threads.h"
#include "stagecraft/runtime/results.h"
#include "stagecraft/runtime/step_driver.h"
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

// The gradients of copies are summed. A tensor that two stages share would be counted twice.
void check_copies(const std::vector<TiedWeight>& ties, const std::vector<Stage>& stages) {
  for (const TiedWeight& tie : ties) {
    std::vector<at::Tensor> seen;
    for (const ParameterRef& ref : tie) {
      const auto s = ref.stage.position();
      if (ref.stage.value() < 0 || s >= stages.size()) continue;  // TiedWeights refuses it
      for (const auto& [name, parameter] : stages[s].parameters()) {
        if (name != ref.name) continue;
        for (const at::Tensor& other : seen) {
          require<ArgumentError>(!other.is_same(parameter),
                                 "tied weights: \"{}\" of stage {} is the same tensor as that of "
                                 "a different stage; shared tensors need no entry",
                                 name, ref.stage.value());
        }
        seen.push_back(parameter);
      }
    }
  }
}

// Autocast caches casts of weights for a step. The cache must not outlive the weights.
void forget_casts() {
  at::autocast::clear_cache();
}

std::vector<at::Tensor> sum_by_microbatch(const std::vector<std::vector<at::Tensor>>& by_rank) {
  std::vector<at::Tensor> sums(by_rank.front().size());
  for (const auto& tensors : by_rank) {
    for (std::size_t m = 0; m < sums.size(); ++m) {
      if (!tensors[m].defined()) continue;
      sums[m] = sums[m].defined() ? at::add(sums[m], tensors[m].to(sums[m].device())) : tensors[m];
    }
  }
  return sums;
}

}  // namespace

class Pipeline::Impl final : public PipelineCore {
 public:
  Impl(std::vector<Stage> stages, const PipelineOptions& given)
      : PipelineCore(given, source_for(given.source, given.schedule, given.ranks,
                                       static_cast<int32_t>(stages.size()))),
        world_(num_ranks(), {.zero_buffering = options.zero_buffering}) {
    require<ArgumentError>(options.replicas == 1,
                           "a Pipeline has one replica, got PipelineOptions::replicas = {}; use a "
                           "Runner for each rank of a world",
                           options.replicas);
    require<ArgumentError>(options.shard == ShardKind::kNone,
                           "a Pipeline has one replica, so PipelineOptions::shard = {} is not for "
                           "it; use a Runner for each rank of a world",
                           to_string(options.shard));
    sort_all_stages(stages, placement().num_stages());
    check_copies(options.ties, stages);
    for (Rank rank(0); rank.value() < num_ranks(); ++rank) {
      std::vector<Stage> own;
      for (const StageId stage : placement().stages(rank)) {
        own.push_back(std::move(stages[stage.position()]));
      }
      ranks_.push_back(std::make_unique<StepDriver>(*this, world_.transport(rank), std::move(own)));
      ranks_.back()->executor().publish_progress();
    }
    if (num_ranks() > 1) {
      start_threads();
    } else if (options.threads_per_rank) {
      set_operator_threads(*options.threads_per_rank);
    }
    launcher_ =
        detail::make_launcher({.core = *this,
                               .ranks = ranks_,
                               .collect = [this](const StepOptions& o) { return collect(o); },
                               .recover = [this] { recover_ranks(); }});
  }

  StepResult run(c10::function_ref<Microbatches()> make_batch, const StepOptions& step,
                 bool is_training) override {
    // Callbacks run on the ranks' threads.
    require<ArgumentError>(!is_in_step_.exchange(true),
                           "a step of this pipeline is in progress: its callbacks cannot call "
                           "step or eval");
    const EndStep end_step{is_in_step_};
    const Microbatches batch = make_batch();
    if (is_training) check_grad_mode();
    check_inputs(batch);
    const std::shared_ptr<const Schedule> recorded = schedule;
    choose_schedule(batch, step, is_training);
    counter.next_id();
    std::optional<MemoryMeter> meter;
    if (step.measure_memory) meter.emplace(num_ranks() + 1);
    StepPlan planned = plan(batch, step, is_training, meter ? &*meter : nullptr);
    StepResult replayed;
    using Outcome = detail::StepLauncher::Outcome;
    const int64_t captured = launches().captured;
    const Outcome outcome =
        launcher_ ? launcher_->launch(planned, replayed) : Outcome::kNotLaunched;
    if (outcome == Outcome::kReplayed) {
      // Without marks a replay records nothing: the recording is that of the last step that was
      // executed.
      if (!launcher_->has_recording() && launches().captured == captured) schedule = recorded;
      counter.complete(is_training);
      return replayed;
    }
    if (outcome == Outcome::kNotLaunched) execute(planned);
    try {
      StepResult result = collect(step);
      if (outcome == Outcome::kExecuted) launcher_->note_collected();
      if (is_training) check_loss(result);
      for (const auto& rank : ranks_) rank->commit(is_training);
      counter.complete(is_training);
      return result;
    } catch (...) {
      for (const auto& rank : ranks_) rank->executor().abandon();
      // The rank of the last stage merges the results, so its executor explains the failure.
      driver(placement().get_rank(StageId(placement().num_stages() - 1)))
          .executor()
          .rethrow_explained();
    }
  }

  std::span<const std::unique_ptr<StepDriver>> drivers() const override { return ranks_; }

  LaunchCounts launches() const override {
    return launcher_ ? launcher_->counts() : PipelineCore::launches();
  }

  RecordedRun recorded_run() override {
    require<ArgumentError>(!is_in_step_,
                           "a step of this pipeline is in progress: its callbacks cannot read the "
                           "recording");
    require_step();
    std::vector<GatheredRank> ranks;
    for (const auto& rank : ranks_) ranks.push_back(rank->recorded());
    return merge(std::move(ranks));
  }

 private:
  struct EndStep {
    std::atomic<bool>& is_in_step;
    ~EndStep() { is_in_step = false; }
  };

  struct RestoreOperatorThreads {
    int32_t number;
    ~RestoreOperatorThreads() { at::set_num_threads(number); }
  };

  int32_t num_ranks() const { return placement().num_ranks(); }
  StepDriver& driver(Rank rank) { return *ranks_[rank.position()]; }

  void start_threads() {
    const int32_t own = at::get_num_threads();
    const int32_t each = options.threads_per_rank.value_or(std::max(1, own / num_ranks()));
    // The ranks' threads also set the number of the process, which later threads take over.
    const RestoreOperatorThreads restore{own};
    threads_ =
        std::make_unique<RankThreads>(num_ranks(), [each](Rank) { set_operator_threads(each); });
    threads_->run([](Rank) {});
  }

  void execute(const StepPlan& step) {
    std::vector<std::exception_ptr> thrown;
    if (threads_ == nullptr) {
      try {
        ranks_.front()->executor().run(step);
      } catch (...) {
        thrown.push_back(std::current_exception());
      }
    } else {
      const at::ThreadLocalState state;
      const auto work = [&](Rank rank) {
        const at::ThreadLocalStateGuard guard(state);
        try {
          driver(rank).executor().run(step);
        } catch (...) {
          forget_casts();
          throw;
        }
        forget_casts();
      };
      thrown = threads_->run(work, [&](const std::exception_ptr& interrupt) {
        world_.transport(Rank(0)).abort({Rank(0), describe(interrupt), interrupt});
      });
    }
    if (std::any_of(thrown.begin(), thrown.end(), [](const auto& t) { return t != nullptr; })) {
      fail(thrown);
    }
  }

  // All ranks have ended. Restores the state before the step and throws the first rank's error.
  [[noreturn]] void fail(const std::vector<std::exception_ptr>& thrown) {
    const auto reason = world_.transport(Rank(0)).abort_reason();
    std::exception_ptr first = reason != nullptr ? reason->cause : nullptr;
    for (const auto& each : thrown) {
      if (first == nullptr) first = each;
    }
    recover_ranks();
    std::rethrow_exception(first);
  }

  // Brings all ranks back into use after a failure.
  void recover_ranks() {
    const auto recover_rank = [&](Rank rank) {
      driver(rank).executor().abandon();
      world_.transport(rank).recover(Deadline::after(std::chrono::seconds(30)));
    };
    if (threads_ == nullptr) {
      recover_rank(Rank(0));
    } else {
      threads_->run(recover_rank);
    }
  }

  StepResult collect(const StepOptions& step) {
    StepResult result;
    std::vector<std::vector<at::Tensor>> added;
    for (const auto& rank : ranks_) {
      StepResult own = take_result(rank->executor(), step, rank->has_last_stage());
      added.push_back(std::move(own.added_losses));
      if (rank->has_last_stage()) result = std::move(own);
    }
    result.added_losses = sum_by_microbatch(added);
    return result;
  }

  // Without a loss, the step had no backward to run.
  void check_loss(const StepResult& result) const {
    const bool has_added = std::any_of(result.added_losses.begin(), result.added_losses.end(),
                                       [](const at::Tensor& loss) { return loss.defined(); });
    require<ArgumentError>(options.loss || has_added,
                           "step: there is no loss, so nothing was trained; set "
                           "PipelineOptions::loss, or call eval for the outputs alone");
  }

  LocalWorld world_;
  std::vector<std::unique_ptr<StepDriver>> ranks_;
  std::unique_ptr<RankThreads> threads_;
  std::unique_ptr<detail::StepLauncher> launcher_;  // null: every step is run
  std::atomic<bool> is_in_step_ = false;
};

Pipeline::Pipeline(std::vector<Stage> stages, PipelineOptions options)
    : PipelineBase([&] {
        require_no_stage_options(options);
        return std::make_unique<Impl>(std::move(stages), options);
      }()) {}

Pipeline::Pipeline(const Pipe& pipe, PipelineOptions options)
    : PipelineBase([&] {
        std::vector<Stage> stages;
        for (StageId stage(0); stage.value() < pipe.num_stages(); ++stage) {
          stages.push_back(build_stage(pipe, stage, options));
        }
        return std::make_unique<Impl>(std::move(stages), options_for(pipe, std::move(options)));
      }()) {}

}  // namespace stagecraft
