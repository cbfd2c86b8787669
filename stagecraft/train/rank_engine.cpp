#include <exception>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/checksum.h"
#include "stagecraft/graph/effects.h"
#include "stagecraft/runtime/record/report.h"
#include "stagecraft/runtime/replica_place.h"
#include "stagecraft/runtime/results.h"
#include "stagecraft/runtime/runner.h"
#include "stagecraft/train/engine.h"
#include "stagecraft/transport/fingerprint.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {

namespace {

/// What updates depend on and no step compares.
Fingerprint update_facts(const TrainerOptions& options) {
  const LearningRate& rate = options.learning_rate;
  const AdamWOptions& adamw = options.adamw;
  return {{"the number of pipeline steps an update", std::to_string(options.accumulate)},
          {"the norm to clip at", fmt::format("{}", options.clip)},
          {"the learning rate", fmt::format("{} to {}, warm-up {}, steps {}", rate.peak, rate.least,
                                            rate.warmup, rate.steps)},
          {"AdamW", fmt::format("betas {} and {}, epsilon {}, weight decay {}", adamw.beta1,
                                adamw.beta2, adamw.epsilon, adamw.weight_decay)}};
}

c10::IValue to_value(const std::vector<at::Tensor>& tensors) {
  std::vector<c10::IValue> values(tensors.begin(), tensors.end());
  return tree::tuple(std::move(values));
}

std::vector<at::Tensor> to_tensors(const c10::IValue& value) {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& entry : value.toTupleRef().elements()) {
    tensors.push_back(entry.toTensor());
  }
  return tensors;
}

/// Others may write to theirs as soon as they go on, which is also in this memory where ranks are
/// threads.
std::vector<at::Tensor> copies_on_cpu(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) {
    copies.push_back(
        tensor.detach().to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true));
  }
  return copies;
}

uint64_t graph_checksum(const Graph& stage) {
  uint64_t sum = 0;
  for (const GraphState& state : stage.parts().states) {
    const at::Tensor data = state.tensor.detach().to(at::kCPU).contiguous();
    sum = detail::checksum(
        std::span(static_cast<const std::byte*>(data.const_data_ptr()), data.nbytes()), sum);
  }
  return sum;
}

class RankEngine : public TrainEngine {
 public:
  RankEngine(const Pipe& pipe, const Loss& loss, const TrainerOptions& options)
      : transport_(*options.transport),
        pipe_(pipe),
        evaluation_pipe_(options.evaluation ? *options.evaluation : pipe),
        timeout_(options.timeout),
        facts_(update_facts(options)),
        source_(source_of(pipe, options)),
        place_{.self = transport_.rank(),
               .ranks = source_.placement().num_ranks(),
               .replicas = options.replicas},
        runner_(transport_, source_, own_stages(pipe), runner_options(pipe, loss, options)),
        evaluation_(transport_, source_, own_stages(evaluation_pipe_),
                    runner_options(evaluation_pipe_, loss, options)) {
    for (const int32_t stage : options.recompute) {
      if (has_stage(StageId(stage))) runner_.stage(StageId(stage)).set_recompute(true);
    }
    for (int32_t s = 0; s < pipe.num_stages(); ++s) {
      for (const at::Tensor& tensor : changed_states(pipe.stage_graph(StageId(s)).parts())) {
        changes_buffers_ = true;
        if (has_stage(StageId(s))) changed_buffers_.push_back(tensor);
      }
    }
  }

  int32_t replicas() const override { return place_.replicas; }
  int32_t num_ranks() const override { return place_.ranks; }
  bool has_stage(StageId stage) const override {
    return source_.placement().get_rank(stage) == place_.own();
  }

  void together(const std::function<void()>& body) override {
    if (must_recover_) recover();
    must_recover_ = true;  // until all of it is done
    try {
      if (!has_agreed_) agree_to_begin();
      body();
    } catch (const std::exception& error) {
      abort(error.what());
      throw;
    } catch (...) {
      abort("something that is no std::exception was thrown");
      throw;
    }
    must_recover_ = false;
  }

  StepResult step(Microbatches all, bool measure_memory) override {
    check_arguments(pipe_, all);
    StepResult result = runner_.step(
        own_share(std::move(all)),
        {.outputs = OutputMode::kNone, .everywhere = true, .measure_memory = measure_memory});
    share_buffers();
    return result;
  }

  StepResult eval(Microbatches all) override {
    check_arguments(evaluation_pipe_, all);
    return evaluation_.eval(own_share(std::move(all)),
                            {.outputs = OutputMode::kNone, .everywhere = true});
  }

  StepResult predict(Microbatches batch, OutputMode outputs) override {
    check_arguments(evaluation_pipe_, batch);
    StepResult result =
        evaluation_.eval(std::move(batch), {.outputs = outputs, .everywhere = true});
    // Replicas draw other random numbers, where the model draws any.
    if (place_.replicas == 1) return result;
    return result_of(transport_.broadcast(stagecraft::to_value(result), Rank(0), deadline()));
  }

  std::vector<c10::IValue> gather(c10::IValue own) override {
    std::vector<c10::IValue> all = transport_.all_gather(std::move(own), deadline());
    all.resize(static_cast<std::size_t>(place_.ranks));
    return all;
  }

  std::vector<std::vector<at::Tensor>> collect(
      const std::function<std::vector<at::Tensor>(StageId)>& of_stage) override {
    const Placement& placement = source_.placement();
    std::vector<std::vector<at::Tensor>> all;
    if (place_.self == Rank(0)) {
      for (StageId s(0); s.value() < placement.num_stages(); ++s) {
        all.push_back(has_stage(s) ? of_stage(s) : receive_from(placement.get_rank(s), s));
      }
    } else if (place_.replica() == 0) {
      for (const StageId s : placement.stages(place_.own())) {
        const PendingPtr send =
            transport_.post_send(Rank(0), id_of(s), to_value(copies_on_cpu(of_stage(s))));
        transport_.wait_send(send, deadline(placement.num_stages()));
      }
    }
    transport_.barrier(deadline(placement.num_stages() + 1));
    return all;
  }

  RecordedRun recorded_run() override { return runner_.gather_run(); }
  double bubble_share() override { return make_report(runner_.gather_recording()).bubble_share; }

  uint64_t completed_steps() const override { return runner_.completed_steps(); }
  void set_completed_steps(uint64_t steps) override {
    runner_.set_completed_steps(steps);
    has_agreed_ = false;  // weights may be others now, too
  }

 private:
  static ScheduleSource source_of(const Pipe& pipe, const TrainerOptions& options) {
    const int32_t all = options.transport->num_ranks();
    require<ArgumentError>(options.replicas >= 1 && all % options.replicas == 0,
                           "a world of {} ranks cannot be {} replicas of one pipeline", all,
                           options.replicas);
    return source_for(options.source, options.schedule,
                      options.ranks.value_or(all / options.replicas), pipe.num_stages());
  }

  RunnerOptions runner_options(const Pipe& pipe, const Loss& loss,
                               const TrainerOptions& options) const {
    return {.loss = loss,
            .ports = pipe.ports(),
            .ties = pipe.ties(),
            .timeout = options.timeout,
            .seed = options.seed,
            .replicas = options.replicas};
  }

  std::vector<Stage> own_stages(const Pipe& pipe) const {
    std::vector<Stage> stages;
    for (const StageId stage : source_.placement().stages(place_.own())) {
      stages.push_back(pipe.build_stage(stage));
    }
    return stages;
  }

  Deadline deadline(int32_t times = 1) const {
    return Deadline::after(std::chrono::duration_cast<Deadline::Clock::duration>(timeout_ * times));
  }

  // No step has number 0.
  static TransferId id_of(StageId stage) {
    return {0, Direction::kResult, stage, stage, MicrobatchId(0)};
  }

  std::vector<at::Tensor> receive_from(Rank rank, StageId stage) {
    const PendingPtr receive = transport_.post_receive(rank, id_of(stage));
    return to_tensors(transport_.wait_receive(receive, deadline()).value);
  }

  // Both runners, whichever of them has failed, or none.
  void recover() {
    runner_.recover();
    evaluation_.recover();
  }

  void abort(const std::string& what) {
    if (transport_.abort_reason() != nullptr) return;
    const Rank rank = transport_.rank();
    transport_.abort(
        {rank, fmt::format("rank {}: {}", rank.value(), what), std::current_exception()});
  }

  void agree_to_begin() {
    handshake(transport_, facts_, deadline());
    if (place_.replicas > 1) compare_weights();
    has_agreed_ = true;
  }

  // Replicas whose weights differ would stay different, and nothing would tell.
  void compare_weights() {
    std::vector<c10::IValue> own;
    for (const StageId stage : source_.placement().stages(place_.own())) {
      own.emplace_back(static_cast<int64_t>(graph_checksum(pipe_.stage_graph(stage))));
    }
    const std::vector<c10::IValue> all =
        transport_.all_gather(tree::tuple(std::move(own)), deadline());
    for (std::size_t r = 0; r < all.size(); ++r) {
      const std::size_t first = r % static_cast<std::size_t>(place_.ranks);
      require<MetadataError>(all[r] == all[first],
                             "ranks {} and {} have the same stages of two replicas, with different "
                             "weights: make the model from the same seed, or restore the same "
                             "checkpoint",
                             first, r);
    }
  }

  // A stage sees its own inputs alone; some conditions are on those of several.
  static void check_arguments(const Pipe& pipe, const Microbatches& batch) {
    if (pipe.graph().parts().guards.empty()) return;
    for (const Arguments& each : batch.inputs) pipe.check_arguments(each.args, each.kwargs);
  }

  Microbatches own_share(Microbatches all) const {
    if (place_.replicas == 1) return all;
    const auto share = [&]<typename T>(const std::vector<T>& whole) {
      const auto each = static_cast<std::ptrdiff_t>(whole.size()) / place_.replicas;
      const auto begin = whole.begin() + place_.replica() * each;
      return std::vector<T>(begin, begin + each);
    };
    return {
        .inputs = share(all.inputs), .targets = share(all.targets), .weights = share(all.weights)};
  }

  // What forwards have changed, as the statistics of a normalisation, is that of the first replica
  // on all of them.
  void share_buffers() {
    if (place_.replicas == 1 || !changes_buffers_) return;
    const bool is_first = place_.replica() == 0;
    const std::vector<c10::IValue> all = transport_.all_gather(
        is_first ? to_value(copies_on_cpu(changed_buffers_)) : c10::IValue(), deadline());
    if (is_first) return;
    const at::NoGradGuard no_grad;
    const std::vector<at::Tensor> values =
        to_tensors(all[static_cast<std::size_t>(place_.own().value())]);
    for (std::size_t i = 0; i < values.size(); ++i) changed_buffers_[i].copy_(values[i]);
  }

  Transport& transport_;
  Pipe pipe_;
  Pipe evaluation_pipe_;
  std::chrono::nanoseconds timeout_;
  Fingerprint facts_;
  ScheduleSource source_;
  ReplicaPlace place_;
  Runner runner_;
  Runner evaluation_;  // its own, so that what was recorded of the last step of training stays
  std::vector<at::Tensor> changed_buffers_;  // of this rank's stages, by their forwards
  bool changes_buffers_ = false;             // of any stage
  bool has_agreed_ = false;
  bool must_recover_ = false;
};

}  // namespace

std::unique_ptr<TrainEngine> make_rank_engine(const Pipe& pipe, const Loss& loss,
                                              const TrainerOptions& options) {
  // A thread takes over the process's number at its first look, so look before setting it.
  at::get_num_threads();
  at::set_num_threads(options.threads_per_rank);
  return std::make_unique<RankEngine>(pipe, loss, options);
}

}  // namespace stagecraft
