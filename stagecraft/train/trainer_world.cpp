#include "stagecraft/train/trainer_world.h"

#include <exception>
#include <span>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <ATen/core/grad_mode.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/checksum.h"
#include "stagecraft/base/error.h"
#include "stagecraft/graph/effects.h"
#include "stagecraft/runtime/pipeline.h"
#include "stagecraft/runtime/record/report.h"
#include "stagecraft/runtime/results.h"
#include "stagecraft/runtime/runner.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {

namespace {

/// The options that updates depend on and that steps do not compare.
Fingerprint update_fingerprint(const TrainerOptions& options) {
  const LearningRate& rate = options.learning_rate;
  const AdamWOptions& adamw = options.adamw;
  return {{"the number of pipeline steps in an update", std::to_string(options.accumulate)},
          {"the norm to clip at", fmt::format("{}", options.clip)},
          {"the learning rate", fmt::format("{} to {}, warm-up {}, steps {}", rate.peak, rate.least,
                                            rate.warmup, rate.steps)},
          {"AdamW", fmt::format("betas {} and {}, epsilon {}, weight decay {}{}", adamw.beta1,
                                adamw.beta2, adamw.epsilon, adamw.weight_decay,
                                adamw.master_weights ? ", with master weights" : "")}};
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

/// Other ranks may change their tensors as soon as they continue. Ranks that are threads share the
/// memory.
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

std::unique_ptr<PipelineBase> make_pipeline(const Pipe& pipe, const Loss& loss,
                                            const TrainerOptions& options, GraphMode graphs,
                                            std::shared_ptr<ParameterShards> shards = nullptr) {
  const PipelineOptions own{.schedule = options.schedule,
                            .ranks = options.ranks,
                            .source = options.source,
                            .loss = loss,
                            .timeout = options.timeout,
                            .seed = options.seed,
                            .replicas = options.replicas,
                            .shard = options.shard,
                            .shard_units = options.shard_units,
                            .shards = std::move(shards),
                            .threads_per_rank = options.threads_per_rank,
                            .graphs = graphs};
  if (options.transport == nullptr) return std::make_unique<Pipeline>(pipe, own);
  return std::make_unique<Runner>(*options.transport, pipe, own);
}

// No step has the number 0.
TransferId id_of_stage(StageId stage) {
  return {0, Direction::kResult, stage, stage, MicrobatchId(0)};
}

}  // namespace

TrainerWorld::TrainerWorld(const Pipe& pipe, const Loss& loss, const TrainerOptions& options)
    : transport_(options.transport),
      pipe_(pipe),
      timeout_(options.timeout),
      fingerprint_(update_fingerprint(options)),
      shard_(options.replicas > 1 ? options.shard : ShardKind::kNone),
      checksums_(checksums_before(options)),
      pipeline_(make_pipeline(pipe, loss, options, options.graphs)),
      // Evaluations are rare, and their graphs would take memory between them.
      evaluation_(make_pipeline(options.evaluation ? *options.evaluation : pipe, loss, options,
                                GraphMode::kOff, shards())),
      place_{.self = transport_ == nullptr ? Rank(0) : transport_->rank(),
             .ranks = placement().num_ranks(),
             .replicas = options.replicas} {
  for (const int32_t stage : options.recompute) {
    if (has_stage(StageId(stage))) pipeline_->stage(StageId(stage)).set_recompute(true);
  }
  for (StageId s(0); s.value() < pipe.num_stages(); ++s) {
    for (const at::Tensor& tensor : changed_states(pipe.stage_graph(s).parts())) {
      changes_buffers_ = true;
      if (has_stage(s)) changed_buffers_.push_back(tensor);
    }
  }
}

Deadline TrainerWorld::deadline(int32_t times) const {
  return Deadline::after(timeout_ * times);
}

bool TrainerWorld::has_stage(StageId stage) const {
  return transport_ == nullptr || placement().get_rank(stage) == place_.own();
}

void TrainerWorld::together(const std::function<void()>& body) {
  if (transport_ == nullptr) return body();
  if (must_recover_) {
    // Both recover, because either of them may have failed.
    pipeline_->recover();
    evaluation_->recover();
  }
  must_recover_ = true;  // until the body is complete
  try {
    if (!has_agreed_) compare_trainers();
    body();
  } catch (...) {
    if (transport_->abort_reason() == nullptr) {
      transport_->abort(reason_for(transport_->rank(), std::current_exception()));
    }
    throw;
  }
  must_recover_ = false;
}

StepResult TrainerWorld::step(Microbatches all, bool measure_memory) {
  const StepOptions options{
      .outputs = OutputMode::kNone, .everywhere = true, .measure_memory = measure_memory};
  StepResult result = pipeline_->step(own_share(std::move(all)), options);
  share_buffers();
  return result;
}

StepResult TrainerWorld::eval(Microbatches all) {
  const StepOptions options{.outputs = OutputMode::kNone, .everywhere = true};
  return evaluation_->eval(own_share(std::move(all)), options);
}

StepResult TrainerWorld::predict(Microbatches batch, OutputMode outputs) {
  const StepOptions options{.outputs = outputs, .everywhere = true};
  StepResult result = evaluation_->eval(std::move(batch), options);
  // Random numbers of the model differ between replicas.
  if (place_.replicas == 1) return result;
  return result_of(transport_->broadcast(stagecraft::to_value(result), Rank(0), deadline()));
}

std::vector<c10::IValue> TrainerWorld::gather(c10::IValue own) {
  if (transport_ == nullptr) return {std::move(own)};
  std::vector<c10::IValue> all = transport_->all_gather(std::move(own), deadline());
  all.resize(static_cast<std::size_t>(place_.ranks));
  return all;
}

std::vector<c10::IValue> TrainerWorld::gather_all(c10::IValue own) {
  if (transport_ == nullptr) return {std::move(own)};
  return transport_->all_gather(std::move(own), deadline());
}

void TrainerWorld::gather_weights() {
  pipeline_->gather_weights();
}

void TrainerWorld::gather_whole() {
  if (shard_ == ShardKind::kParameters) shards()->gather(*transport_, deadline());
}

void TrainerWorld::release_whole() {
  if (shard_ == ShardKind::kParameters) shards()->release();
}

MeasuredLookahead TrainerWorld::fit_unshard_lookahead() {
  MeasuredLookahead found = pipeline_->fit_unshard_lookahead();
  evaluation_->set_unshard_lookahead(found.lookahead);
  return found;
}

std::shared_ptr<ParameterShards> TrainerWorld::shards() const {
  return pipeline_->shards();
}

std::vector<std::vector<at::Tensor>> TrainerWorld::collect(
    const std::function<std::vector<at::Tensor>(StageId)>& of_stage) {
  const int32_t stages = placement().num_stages();
  std::vector<std::vector<at::Tensor>> all;
  if (place_.self == Rank(0)) {
    for (StageId s(0); s.value() < stages; ++s) {
      all.push_back(has_stage(s) ? of_stage(s) : receive_from(placement().get_rank(s), s));
    }
  } else if (place_.replica() == 0) {
    for (const StageId s : placement().stages(place_.own())) {
      const PendingPtr send =
          transport_->post_send(Rank(0), id_of_stage(s), to_value(copies_on_cpu(of_stage(s))));
      transport_->wait_send(send, deadline(stages));
    }
  }
  if (transport_ != nullptr) transport_->barrier(deadline(stages + 1));
  return all;
}

std::vector<at::Tensor> TrainerWorld::receive_from(Rank rank, StageId stage) {
  const PendingPtr receive = transport_->post_receive(rank, id_of_stage(stage));
  return to_tensors(transport_->wait_receive(receive, deadline()).value);
}

RecordedRun TrainerWorld::recorded_run() {
  return pipeline_->recorded_run();
}

// Making a report takes longer than replaying a small step, which has nothing to report.
double TrainerWorld::bubble_share() {
  const int64_t runs = pipeline_->launches().run;
  if (runs != reported_runs_) {
    bubble_share_ = make_report(recorded_run().recording).bubble_share;
    reported_runs_ = runs;
  }
  return bubble_share_;
}

uint64_t TrainerWorld::completed_steps() const {
  return pipeline_->completed_steps();
}

void TrainerWorld::set_completed_steps(uint64_t steps) {
  pipeline_->set_completed_steps(steps);
  has_agreed_ = false;  // the weights may have changed, too
  checksums_.clear();
}

void TrainerWorld::compare_trainers() {
  handshake(*transport_, fingerprint_, deadline());
  if (place_.replicas > 1) compare_weights();
  has_agreed_ = true;
}

std::vector<c10::IValue> TrainerWorld::weight_checksums(std::span<const StageId> stages) const {
  std::vector<c10::IValue> sums;
  for (const StageId stage : stages) {
    sums.emplace_back(static_cast<int64_t>(graph_checksum(pipe_.stage_graph(stage))));
  }
  return sums;
}

// Pieces of weights cannot be compared, so weights are compared as they were before they were
// sharded.
std::vector<c10::IValue> TrainerWorld::checksums_before(const TrainerOptions& options) const {
  if (shard_ != ShardKind::kParameters || transport_ == nullptr) return {};
  const int32_t ranks = transport_->num_ranks() / options.replicas;
  const Placement placement = source_for(options.source, options.schedule,
                                         options.ranks.value_or(ranks), pipe_.num_stages())
                                  .placement();
  const auto stages = placement.stages(Rank(transport_->rank().value() % placement.num_ranks()));
  return weight_checksums({stages.begin(), stages.end()});
}

// Replicas whose weights differ would stay different, without any error.
void TrainerWorld::compare_weights() {
  const auto stages = placement().stages(place_.own());
  std::vector<c10::IValue> own = shard_ == ShardKind::kParameters
                                     ? checksums_
                                     : weight_checksums({stages.begin(), stages.end()});
  const std::vector<c10::IValue> all =
      transport_->all_gather(tree::tuple(std::move(own)), deadline());
  for (std::size_t r = 0; r < all.size(); ++r) {
    const std::size_t first = r % static_cast<std::size_t>(place_.ranks);
    require<MetadataError>(all[r] == all[first],
                           "ranks {} and {} have the same stages of two replicas, but different "
                           "weights: create the model from the same seed, or restore the same "
                           "checkpoint",
                           first, r);
  }
}

Microbatches TrainerWorld::own_share(Microbatches all) const {
  if (place_.replicas == 1) return all;
  const auto share = [&]<typename T>(const std::vector<T>& whole) {
    const auto each = static_cast<std::ptrdiff_t>(whole.size()) / place_.replicas;
    const auto begin = whole.begin() + place_.replica() * each;
    return std::vector<T>(begin, begin + each);
  };
  return {
      .inputs = share(all.inputs), .targets = share(all.targets), .weights = share(all.weights)};
}

// Buffers that forwards change, such as the statistics of a normalisation, are copied from the
// first replica to the others.
void TrainerWorld::share_buffers() {
  if (place_.replicas == 1 || !changes_buffers_) return;
  const bool is_first = place_.replica() == 0;
  const std::vector<c10::IValue> all = transport_->all_gather(
      is_first ? to_value(copies_on_cpu(changed_buffers_)) : c10::IValue(), deadline());
  if (is_first) return;
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> values = to_tensors(all[place_.own().position()]);
  for (std::size_t i = 0; i < values.size(); ++i) changed_buffers_[i].copy_(values[i]);
}

}  // namespace stagecraft
