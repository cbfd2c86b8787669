#include "stagecraft/runtime/parameter_exchange.h"

#include "stagecraft/runtime/grad_reducer.h"
#include "stagecraft/runtime/piece_reducer.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {

namespace {

int64_t bytes_of_grad(const at::Tensor& parameter) {
  return parameter.grad().defined() ? static_cast<int64_t>(parameter.grad().nbytes()) : 0;
}

std::unique_ptr<ReplicaReducer> make_reducer(Transport& transport, const ReplicaPlace& place,
                                             std::span<Stage> stages, const TiedWeights& ties,
                                             ProgressMark& progress, ParameterShards* shards) {
  if (shards != nullptr && shards->kind() >= ShardKind::kGradients) {
    return std::make_unique<PieceReducer>(transport, *shards, stages, progress);
  }
  return std::make_unique<GradReducer>(transport, place, stages, ties, progress);
}

}  // namespace

ParameterExchange::ParameterExchange(Transport& transport, const ReplicaPlace& place,
                                     std::span<Stage> stages, const Placement& placement,
                                     const PipelineOptions& options, ParameterShards* shards,
                                     Recorder& recorder, ProgressMark& progress)
    : place_(place),
      stages_(stages),
      options_(options),
      progress_(progress),
      shards_(shards),
      ties_(transport, placement, place, stages, options.ties, shards),
      reducer_(make_reducer(transport, place, stages, ties_, progress, shards)),
      gathers_(transport, shards, recorder, progress) {}

std::vector<Rank> ParameterExchange::peers() const {
  std::vector<Rank> peers = ties_.peers();
  for (int32_t replica = 0; replica < place_.replicas; ++replica) {
    if (replica != place_.replica()) peers.push_back(place_.in_replica(replica));
  }
  return peers;
}

void ParameterExchange::start(const StepPlan& plan) {
  step_ = plan.step;
  is_training_ = plan.is_training;
  note_missing_grads();
  if (shards_ != nullptr) shards_->check(stages_);
  gathers_.start(step_);
  if (!is_training_) return;
  reducer_->start(plan.options->reduce_grads);
  ties_.start();
}

// Called before the reducer sets gradients of earlier steps aside.
void ParameterExchange::note_missing_grads() {
  had_no_grad_.clear();
  if (!is_training_) return;
  for (const Stage& stage : stages_) {
    for (const auto& [name, parameter] : stage.parameters()) {
      if (!parameter.grad().defined()) had_no_grad_.push_back(parameter);
    }
  }
}

// `is_waiting_` stays set if the wait throws.
template <typename Wait>
void ParameterExchange::waiting(Wait&& wait) {
  is_waiting_ = true;
  wait(Deadline::after(options_.timeout));
  is_waiting_ = false;
}

// An overlap waits for the weights of all its parts.
void ParameterExchange::wait_for_weights(std::span<const Action> slot, std::size_t offset) {
  if (shards_ == nullptr) return;
  waiting([&](Deadline deadline) {
    for (const Action action : slot) {
      if (is_compute(action.type())) gathers_.wait(action.stage(), offset, deadline);
    }
  });
}

void ParameterExchange::reshard(StageId stage) {
  waiting([&](Deadline deadline) { gathers_.reshard(stage, deadline); });
}

void ParameterExchange::wait_reduced(StageId stage) {
  waiting([&](Deadline deadline) { reducer_->wait(stage, deadline); });
}

// Replicas are reduced first, so that the copies of a tied weight have the same gradients in each
// replica.
void ParameterExchange::finish() {
  waiting([&](Deadline deadline) { gathers_.finish(deadline); });
  if (!is_training_) return;
  waiting([&](Deadline deadline) {
    reducer_->finish(step_, deadline);
    const ProgressMark::Waiting tied(progress_, "gradients of tied weights");
    ties_.finish(step_, options_.timeout);
  });
}

void ParameterExchange::commit() {
  had_no_grad_.clear();
  reducer_->add_earlier();
}

void ParameterExchange::abandon() {
  ties_.abandon();
  reducer_->abandon();
  gathers_.abandon();
  for (at::Tensor& parameter : had_no_grad_) parameter.mutable_grad().reset();
  had_no_grad_.clear();
}

bool ParameterExchange::releases_weights() const {
  return shards_ != nullptr && shards_->kind() == ShardKind::kParameters;
}

c10::IValue ParameterExchange::without_weights(const c10::IValue& output) const {
  if (!releases_weights()) return output;
  return tree::map(output, [&](const c10::IValue& leaf) -> c10::IValue {
    if (!leaf.isTensor() || !shards_->is_part_of(leaf.toTensor())) return leaf;
    const at::Tensor& tensor = leaf.toTensor();
    return tensor.detach().clone().requires_grad_(tensor.requires_grad());
  });
}

int64_t ParameterExchange::bytes_held() const {
  int64_t bytes = 0;
  for (const Stage& stage : stages_) {
    for (const auto& [name, parameter] : stage.parameters()) {
      const bool is_sharded = shards_ != nullptr && shards_->find_unit(parameter) != nullptr;
      if (!is_sharded) bytes += static_cast<int64_t>(parameter.nbytes());
      bytes += bytes_of_grad(parameter);
    }
  }
  if (shards_ == nullptr) return bytes;
  if (releases_weights()) bytes += shards_->piece_bytes();
  for (const auto& unit : shards_->units()) bytes += bytes_of_grad(unit->piece());
  return bytes + shards_->whole_bytes();
}

}  // namespace stagecraft
