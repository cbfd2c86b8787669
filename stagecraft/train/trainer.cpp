#include "stagecraft/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include "stagecraft/base/check.h"
#include "stagecraft/graph/effects.h"
#include "stagecraft/graph/saved_state.h"
#include "stagecraft/train/clip.h"
#include "stagecraft/tree/describe.h"

namespace stagecraft {

namespace {

constexpr const char* kModel = "model";
constexpr const char* kAverage = "average";
constexpr const char* kSquare = "average_square";
constexpr const char* kUpdates = "updates";

using Section = std::map<std::string, at::Tensor>;

/// A section of all stages together.
Section gather(const Checkpoint& checkpoint, const std::string& section) {
  Section all;
  for (const auto& stage : checkpoint.stages) {
    const auto found = stage.find(section);
    if (found == stage.end()) continue;
    for (const auto& [name, tensor] : found->second) all.emplace(name, tensor);
  }
  return all;
}

/// What is to be written where, found out before anything is.
class Restore {
 public:
  void add(const Section& section, const std::string& what, const std::string& name,
           const at::Tensor& to) {
    const auto found = section.find(name);
    require<MetadataError>(found != section.end(), "the checkpoint has no {} of {}", what, name);
    const at::Tensor& from = found->second;
    require<MetadataError>(from.sizes() == to.sizes() && from.scalar_type() == to.scalar_type(),
                           "{} of {}: expected {}, the checkpoint has {}", what, name, describe(to),
                           describe(from));
    copies_.emplace_back(to.detach(), from);
  }
  void run() const {
    const at::NoGradGuard no_grad;
    for (const auto& [to, from] : copies_) to.copy_(from);
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;
};

void check_no_others(const Section& section, const std::vector<ModelState>& states) {
  std::set<std::string_view> known;
  for (const ModelState& state : states) known.insert(state.name);
  for (const auto& [name, tensor] : section) {
    require<MetadataError>(known.contains(name), "the checkpoint has {}, which this model has not",
                           name);
  }
}

}  // namespace

namespace {

/// Puts tensors back at the end as they were at the beginning.
class Buffers {
 public:
  explicit Buffers(const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& tensor : tensors) saved_.save(tensor);
  }
  ~Buffers() { saved_.restore(); }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

 private:
  SavedState saved_;
};

}  // namespace

class Trainer::Impl {
 public:
  Impl(Pipe pipe, Loss loss, TrainerOptions options)
      : pipe_(std::move(pipe)),
        options_(std::move(options)),
        states_(model_states(pipe_)),
        optimizer_(states_, options_.adamw) {
    check(options_.learning_rate);
    require<ArgumentError>(options_.microbatches >= 1 && options_.accumulate >= 1,
                           "expected at least one microbatch and one step an update, got {} and {}",
                           options_.microbatches, options_.accumulate);
    require<ArgumentError>(options_.clip >= 0, "expected a norm of at least 0 to clip at, got {}",
                           options_.clip);
    require<ArgumentError>(options_.threads_per_rank >= 1,
                           "expected at least one thread for each rank, got {}",
                           options_.threads_per_rank);
    require<ArgumentError>(!optimizer_.states().empty(), "the model has nothing to train");
    at::set_num_threads(options_.threads_per_rank);
    pipeline_.emplace(make_pipeline(pipe_, loss, options_.recompute));
    // Its own, so that what was recorded of the last step of training stays.
    const Pipe& evaluation = options_.evaluation ? *options_.evaluation : pipe_;
    for (int32_t i = 0; i < evaluation.num_stages(); ++i) {
      for (at::Tensor& tensor : changed_states(evaluation.stage_graph(StageId(i)).parts())) {
        evaluation_buffers_.push_back(std::move(tensor));
      }
    }
    evaluation_.emplace(
        make_pipeline(options_.evaluation ? *options_.evaluation : pipe_, loss, {}));
  }

  TrainStep step(const Arguments& inputs, const c10::IValue& target, bool measure_memory) {
    const auto begin = std::chrono::steady_clock::now();
    optimizer_.zero_grad();
    TrainStep result;
    const uint64_t completed = pipeline_->completed_steps();
    try {
      result.loss = run_microbatches(inputs, target, measure_memory);
      result.grad_norm = grad_norm(states_);
      check_norm(result.grad_norm);
    } catch (...) {
      optimizer_.zero_grad();
      pipeline_->set_completed_steps(completed);
      throw;
    }
    if (options_.clip > 0) clip_grads(states_, result.grad_norm, options_.clip);
    result.learning_rate = options_.learning_rate.at(steps_);
    optimizer_.step(result.learning_rate);
    result.step = ++steps_;
    result.bubble_share = pipeline_->report().bubble_share;
    result.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return result;
  }

  double eval_loss(const Arguments& inputs, const c10::IValue& target) {
    Microbatches batch =
        split_batch(inputs.args, inputs.kwargs, target, {.microbatches = options_.microbatches});
    // Without targets eval() would leave out the loss, which may need none.
    if (target.isNone()) batch.targets.resize(batch.inputs.size());
    const Buffers kept(evaluation_buffers_);
    return evaluation_->eval(std::move(batch), {.outputs = OutputMode::kNone})
        .loss()
        .item<double>();
  }

  StepResult predict(const Arguments& inputs, OutputMode outputs) {
    const Buffers kept(evaluation_buffers_);
    return evaluation_->eval(inputs.args, inputs.kwargs, {},
                             {.microbatches = options_.microbatches, .outputs = outputs});
  }

  int64_t steps() const { return steps_; }
  const Pipe& pipe() const { return pipe_; }
  const Pipeline& pipeline() const { return *pipeline_; }
  const std::vector<ModelState>& states() const { return states_; }

  Checkpoint checkpoint(std::string notes) const {
    Checkpoint result{.step = steps_,
                      .seed = options_.seed,
                      .pipeline_steps = pipeline_->completed_steps(),
                      .notes = std::move(notes),
                      .stages = {}};
    result.stages.resize(static_cast<std::size_t>(pipe_.num_stages()));
    const auto stage_of = [&](const ModelState& state) -> auto& {
      return result.stages[static_cast<std::size_t>(state.stage.value())];
    };
    for (const ModelState& state : states_) {
      stage_of(state)[kModel].emplace_back(state.name, state.tensor());
    }
    for (std::size_t i = 0; i < optimizer_.states().size(); ++i) {
      const ModelState& state = optimizer_.states()[i];
      const AdamW::Moments& moments = optimizer_.moments()[i];
      stage_of(state)[kAverage].emplace_back(state.name, moments.average);
      stage_of(state)[kSquare].emplace_back(state.name, moments.average_square);
      stage_of(state)[kUpdates].emplace_back(state.name, moments.updates);
    }
    return result;
  }

  void restore(const Checkpoint& checkpoint) {
    Restore restore;
    const Section model = gather(checkpoint, kModel);
    check_no_others(model, states_);
    for (const ModelState& state : states_) {
      for (const at::Tensor& copy : state.copies) restore.add(model, "value", state.name, copy);
    }
    const Section average = gather(checkpoint, kAverage);
    const Section square = gather(checkpoint, kSquare);
    const Section updates = gather(checkpoint, kUpdates);
    for (std::size_t i = 0; i < optimizer_.states().size(); ++i) {
      const std::string& name = optimizer_.states()[i].name;
      const AdamW::Moments& moments = optimizer_.moments()[i];
      restore.add(average, "average of gradients", name, moments.average);
      restore.add(square, "average of squares", name, moments.average_square);
      restore.add(updates, "number of updates", name, moments.updates);
    }
    require<MetadataError>(checkpoint.step >= 0, "the checkpoint is of step {}", checkpoint.step);
    require<MetadataError>(
        checkpoint.seed == options_.seed,
        "the checkpoint's random numbers come from seed {}, here they would from {}",
        checkpoint.seed, options_.seed);
    restore.run();
    optimizer_.spread_moments();
    optimizer_.zero_grad();
    steps_ = checkpoint.step;
    pipeline_->set_completed_steps(checkpoint.pipeline_steps);
  }

 private:
  void check_norm(double norm) const {
    if (std::isfinite(norm)) return;
    check_finite_grads(states_);
    throw Error(fmt::format("the norm of the gradients is {}: training has run away", norm));
  }

  Pipeline make_pipeline(const Pipe& pipe, const Loss& loss,
                         const std::vector<int32_t>& recompute) const {
    Pipeline pipeline(pipe, {.schedule = options_.schedule,
                             .ranks = options_.ranks,
                             .source = options_.source,
                             .loss = loss,
                             .timeout = options_.timeout,
                             .seed = options_.seed,
                             .threads_per_rank = options_.threads_per_rank});
    for (const int32_t stage : recompute) {
      require<ArgumentError>(stage >= 0 && stage < pipe.num_stages(),
                             "recompute: expected stages from 0 to {}, got {}",
                             pipe.num_stages() - 1, stage);
      pipeline.stage(StageId(stage)).set_recompute(true);
    }
    return pipeline;
  }

  /// All microbatches of an update, so many at a time; the loss of the whole batch.
  double run_microbatches(const Arguments& inputs, const c10::IValue& target, bool measure_memory) {
    const auto each = static_cast<std::size_t>(options_.microbatches);
    const auto parts = static_cast<std::size_t>(options_.accumulate);
    Microbatches all = split_batch(inputs.args, inputs.kwargs, target,
                                   {.microbatches = static_cast<int32_t>(each * parts)});
    double loss = 0;
    for (std::size_t part = 0; part < parts; ++part) {
      Microbatches some;
      for (std::size_t m = part * each; m < (part + 1) * each; ++m) {
        some.inputs.push_back(std::move(all.inputs[m]));
        if (!all.targets.empty()) some.targets.push_back(std::move(all.targets[m]));
        some.weights.push_back(all.weights[m]);
      }
      const StepResult result = pipeline_->step(
          std::move(some), {.outputs = OutputMode::kNone, .measure_memory = measure_memory});
      for (std::size_t m = 0; m < each; ++m) {
        loss += result.weights[m] * result.losses[m].item<double>();
      }
    }
    return loss;
  }

  Pipe pipe_;
  TrainerOptions options_;
  std::vector<ModelState> states_;
  AdamW optimizer_;
  std::optional<Pipeline> pipeline_;
  std::optional<Pipeline> evaluation_;
  std::vector<at::Tensor> evaluation_buffers_;  // that a forward changes
  int64_t steps_ = 0;
};

Trainer::Trainer(Pipe pipe, Loss loss, TrainerOptions options)
    : impl_(std::make_unique<Impl>(std::move(pipe), std::move(loss), std::move(options))) {}

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

const Pipeline& Trainer::pipeline() const {
  return impl_->pipeline();
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
