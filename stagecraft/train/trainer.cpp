#include "stagecraft/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include <ATen/Parallel.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/log.h"
#include "stagecraft/graph/effects.h"
#include "stagecraft/graph/run/saved_state.h"
#include "stagecraft/train/clip.h"
#include "stagecraft/train/device_update.h"
#include "stagecraft/train/trainer_options.h"
#include "stagecraft/train/trainer_world.h"
#include "stagecraft/train/training_checkpoints.h"
#include "stagecraft/train/training_memory.h"
#include "stagecraft/train/training_state.h"
#include "stagecraft/train/update_measures.h"

namespace stagecraft {

class Trainer::Impl {
 public:
  Impl(Pipe pipe, const Loss& loss, TrainerOptions options)
      : pipe_(std::move(pipe)),
        options_(std::move(options)),
        world_(checked(loss), loss, options_),
        state_(
            pipe_, options_.adamw, [&](StageId stage) { return world_.has_stage(stage); },
            world_.shards()),
        measures_(world_, state_),
        checkpoints_(world_, state_, options_.seed) {
    require<ArgumentError>(std::any_of(state_.all().begin(), state_.all().end(),
                                       [](const ModelState& state) { return state.is_trained(); }),
                           "the model has no trainable parameters");
    // Ranks in several processes exchange their norms on the host.
    if (options_.transport == nullptr) {
      device_update_ =
          detail::DeviceUpdate::make(state_.optimizer(), options_.clip, options_.graphs);
    }
    const Pipe& evaluation = options_.evaluation ? *options_.evaluation : pipe_;
    for (StageId s(0); s.value() < evaluation.num_stages(); ++s) {
      if (!world_.has_stage(s)) continue;
      for (at::Tensor& tensor : changed_states(evaluation.stage_graph(s).parts())) {
        evaluation_buffers_.push_back(std::move(tensor));
      }
    }
  }

  TrainStep step(const Arguments& inputs, const c10::IValue& target, bool measure_memory) {
    const auto begin = std::chrono::steady_clock::now();
    has_times_ = false;
    state_.zero_grad();
    TrainStep result;
    const uint64_t completed = world_.completed_steps();
    result.learning_rate = options_.learning_rate.at(steps_);
    try {
      std::string problem;
      world_.together([&] {
        refresh_weights();
        const UpdateLosses losses = run_microbatches(inputs, target, measure_memory);
        state_.attach_grads();
        if (device_update_) {
          update_on_device(result, losses);
        } else {
          measures_.measure(result, losses);
        }
        if (!std::isfinite(result.grad_norm)) {
          problem = measures_.describe_problem(result.grad_norm);
        }
      });
      if (!problem.empty()) throw Error(problem);
    } catch (...) {
      state_.zero_grad();
      world_.set_completed_steps(completed);
      if (device_update_) device_update_->rethrow_explained();
      throw;
    }
    if (!device_update_) {
      if (options_.clip > 0) clip_grads(state_.here(), result.grad_norm, options_.clip);
      state_.optimizer().step(result.learning_rate);
    }
    share_weights();
    has_times_ = true;
    result.step = ++steps_;
    result.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return result;
  }

  double eval_loss(const Arguments& inputs, const c10::IValue& target) {
    double loss = 0;
    world_.together([&] {
      refresh_weights();
      Microbatches batch = split_batch(inputs.args, inputs.kwargs, target,
                                       {.microbatches = options_.microbatches * world_.replicas()});
      // Without targets eval() skips the loss, but this loss may need none.
      if (target.isNone()) batch.targets.resize(batch.inputs.size());
      const KeptBuffers kept(evaluation_buffers_);
      loss = world_.eval(std::move(batch)).loss().item<double>();
    });
    return loss;
  }

  StepResult predict(const Arguments& inputs, OutputMode outputs) {
    StepResult result;
    world_.together([&] {
      refresh_weights();
      Microbatches batch =
          split_batch(inputs.args, inputs.kwargs, {}, {.microbatches = options_.microbatches});
      const KeptBuffers kept(evaluation_buffers_);
      result = world_.predict(std::move(batch), outputs);
    });
    return result;
  }

  Memory memory() const { return training_memory(state_, world_); }

  int64_t steps() const { return steps_; }
  const Pipe& pipe() const { return pipe_; }
  int32_t num_ranks() const { return world_.num_ranks(); }
  const std::vector<ModelState>& states() const { return state_.all(); }

  RecordedRun recorded_run() {
    std::optional<RecordedRun> run;
    world_.together([&] { run = world_.recorded_run(); });
    return std::move(*run);
  }

  MeasuredLookahead fit_unshard_lookahead() {
    require<ArgumentError>(
        options_.transport != nullptr && options_.replicas > 1 &&
            options_.shard == ShardKind::kParameters,
        "weights that are not sharded are not gathered: set TrainerOptions::shard to kParameters, "
        "with several replicas");
    require<ArgumentError>(has_times_,
                           "the lookahead is found from the times of the last step: call step "
                           "before");
    // Every rank finds this error itself.
    source_for(options_.source, options_.schedule, num_ranks(), pipe_.num_stages())
        .without_unshard(options_.microbatches);
    MeasuredLookahead found;
    world_.together([&] { found = world_.fit_unshard_lookahead(); });
    return found;
  }

  Checkpoint checkpoint(std::string notes) { return checkpoints_.make(steps_, std::move(notes)); }

  void restore(const Checkpoint& checkpoint) {
    checkpoints_.restore(checkpoint);
    is_stale_ = false;
    steps_ = checkpoint.step;
  }

  void release_other_stages() {
    state_.release_others(pipe_, [&](StageId stage) { return world_.has_stage(stage); });
  }

  void gather_weights() {
    std::vector<std::vector<at::Tensor>> stages;
    world_.together([&] {
      refresh_weights();
      world_.gather_whole();
      stages = world_.collect([&](StageId stage) { return state_.tensors_of(stage, false); });
      if (world_.place().self != Rank(0)) world_.release_whole();
    });
    for (StageId s(0); s.value() < static_cast<int32_t>(stages.size()); ++s) {
      if (!world_.has_stage(s)) state_.set_values(s, stages[s.position()]);
    }
  }

 private:
  /// Restores buffers when it is destroyed.
  class KeptBuffers {
   public:
    explicit KeptBuffers(const std::vector<at::Tensor>& buffers) {
      for (const at::Tensor& buffer : buffers) kept_.save(buffer);
    }

   private:
    SavedState kept_;
  };

  // Checks the options. Returns the pipe.
  const Pipe& checked(const Loss& loss) const {
    check(options_, pipe_, loss);
    // A thread takes over the process's number at its first query, so query before setting it.
    at::get_num_threads();
    at::set_num_threads(options_.threads_per_rank);
    return pipe_;
  }

  /// Called after an update of pieces. If the other replicas cannot be reached, the update is kept,
  /// and the next call tries again.
  void share_weights() {
    if (!world_.shards()) return;
    is_stale_ = true;
    try {
      world_.together([&] { refresh_weights(); });
    } catch (const Error& error) {
      log(LogLevel::kWarning,
          fmt::format("the weights of an update were not gathered from all replicas: {}",
                      error.what()));
    }
  }

  /// Called in `together`.
  void refresh_weights() {
    if (is_stale_) world_.gather_weights();
    is_stale_ = false;
  }

  /// Runs the steps of an update.
  UpdateLosses run_microbatches(const Arguments& inputs, const c10::IValue& target,
                                bool measure_memory) {
    const auto each = static_cast<std::size_t>(options_.microbatches) *
                      static_cast<std::size_t>(world_.replicas());
    const auto parts = static_cast<std::size_t>(options_.accumulate);
    Microbatches all = split_batch(inputs.args, inputs.kwargs, target,
                                   {.microbatches = static_cast<int32_t>(each * parts)});
    UpdateLosses all_losses;
    for (std::size_t part = 0; part < parts; ++part) {
      Microbatches some;
      for (std::size_t m = part * each; m < (part + 1) * each; ++m) {
        some.inputs.push_back(std::move(all.inputs[m]));
        if (!all.targets.empty()) some.targets.push_back(std::move(all.targets[m]));
        some.weights.push_back(all.weights[m]);
      }
      StepResult result = world_.step(std::move(some), measure_memory);
      for (std::size_t m = 0; m < each; ++m) {
        all_losses.losses.push_back(std::move(result.losses[m]));
        all_losses.weights.push_back(result.weights[m]);
      }
    }
    return all_losses;
  }

  /// The same as UpdateMeasures::measure, clipping and the update, on one device. The host waits
  /// for the device once, at the end.
  void update_on_device(TrainStep& step, const UpdateLosses& losses) {
    std::vector<at::Tensor> numbers = losses.losses;
    numbers.push_back(device_update_->run(step.learning_rate));
    numbers = read_scalars(numbers);
    step.loss = losses.sum(numbers);
    step.grad_norm = numbers.back().item<double>();
    step.bubble_share = world_.bubble_share();
  }

  Pipe pipe_;
  TrainerOptions options_;
  TrainerWorld world_;
  TrainingState state_;
  UpdateMeasures measures_;
  TrainingCheckpoints checkpoints_;
  std::unique_ptr<detail::DeviceUpdate> device_update_;  // null: the host clips and updates
  std::vector<at::Tensor> evaluation_buffers_;           // that a forward changes
  int64_t steps_ = 0;
  bool is_stale_ = false;   // weights of other replicas' pieces
  bool has_times_ = false;  // of the last step
};

Trainer::Trainer(Pipe pipe, const Loss& loss, TrainerOptions options)
    : impl_(std::make_unique<Impl>(std::move(pipe), loss, std::move(options))) {}

Trainer::~Trainer() = default;
Trainer::Trainer(Trainer&&) noexcept = default;
Trainer& Trainer::operator=(Trainer&&) noexcept = default;

TrainStep Trainer::step(const Args& args, const c10::IValue& target, bool measure_memory) {
  return impl_->step({args, {}}, target, measure_memory);
}

TrainStep Trainer::step(const Arguments& inputs, const c10::IValue& target, bool measure_memory) {
  return impl_->step(inputs, target, measure_memory);
}

double Trainer::eval_loss(const Args& args, const c10::IValue& target) {
  return eval_loss(Arguments{args, {}}, target);
}

double Trainer::eval_loss(const Arguments& inputs, const c10::IValue& target) {
  return impl_->eval_loss(inputs, target);
}

c10::IValue Trainer::predict(const Args& args) {
  return predict(Arguments{args, {}});
}

c10::IValue Trainer::predict(const Arguments& inputs) {
  return impl_->predict(inputs, OutputMode::kMerged).output;
}

std::vector<c10::IValue> Trainer::predict_each(const Arguments& inputs) {
  return impl_->predict(inputs, OutputMode::kEach).outputs;
}

int64_t Trainer::steps() const {
  return impl_->steps();
}

const Pipe& Trainer::pipe() const {
  return impl_->pipe();
}

int32_t Trainer::num_ranks() const {
  return impl_->num_ranks();
}

RecordedRun Trainer::recorded_run() {
  return impl_->recorded_run();
}

MeasuredLookahead Trainer::fit_unshard_lookahead() {
  return impl_->fit_unshard_lookahead();
}

Trainer::Memory Trainer::memory() const {
  return impl_->memory();
}

void Trainer::release_other_stages() {
  impl_->release_other_stages();
}

void Trainer::gather_weights() {
  impl_->gather_weights();
}

const std::vector<ModelState>& Trainer::states() const {
  return impl_->states();
}

Checkpoint Trainer::checkpoint(std::string notes) const {
  return impl_->checkpoint(std::move(notes));
}

void Trainer::restore(const Checkpoint& checkpoint) {
  impl_->restore(checkpoint);
}

}  // namespace stagecraft
