#include "stagecraft/runtime/piece_reducer.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros_like.h>

#include "stagecraft/base/check.h"

namespace stagecraft {

PieceReducer::PieceReducer(Transport& transport, ParameterShards& shards, std::span<Stage> stages,
                           ProgressMark& progress)
    : transport_(transport), shards_(shards), stages_(stages), progress_(progress) {
  for (const auto& unit : shards.units()) reductions_.push_back({.unit = unit.get()});
}

int32_t PieceReducer::num_local() const {
  std::size_t count = 0;
  for (const Reduction& reduction : reductions_) {
    if (reduction.is_local) count += reduction.unit->parameters().size();
  }
  return static_cast<int32_t>(count);
}

// Backward adds to a copy of local gradients, because the step may fail.
std::vector<at::Tensor> PieceReducer::copies_of_grads(const Reduction& reduction) const {
  std::vector<at::Tensor> copies;
  const ShardUnit& unit = *reduction.unit;
  for (const ShardUnit::Parameter& parameter : unit.parameters()) {
    const at::Tensor& grad = parameter.tensor.grad();
    require<ArgumentError>(reduction.is_local || !grad.defined(),
                           "stage {}: parameter \"{}\" has a gradient, but gradients are sharded: "
                           "each replica has a piece of their sums (Runner::shards)",
                           unit.stage().value(), parameter.name);
    copies.push_back(grad.defined() ? grad.clone() : at::Tensor());
  }
  return copies;
}

void PieceReducer::start(bool reduces) {
  std::vector<std::vector<at::Tensor>> copies;
  for (const Reduction& reduction : reductions_) copies.push_back(copies_of_grads(reduction));
  // From here on nothing can fail.
  is_reduced_.assign(stages_.size(), false);
  is_started_ = true;
  reduces_ = reduces;
  for (std::size_t i = 0; i < reductions_.size(); ++i) {
    Reduction& reduction = reductions_[i];
    ShardUnit& unit = *reduction.unit;
    reduction.local.clear();
    for (std::size_t p = 0; p < copies[i].size(); ++p) {
      at::Tensor& grad = unit.parameters()[p].tensor.mutable_grad();
      reduction.local.push_back(std::exchange(grad, std::move(copies[i][p])));
    }
    reduction.missing = unit.holders().size();
    reduction.scatter.reset();
    reduction.is_taken = false;
    reduction.earlier = std::move(unit.piece().mutable_grad());
    reduction.had_grad = std::exchange(unit.has_grad(), std::vector<bool>(unit.segments().size()));
  }
}

void PieceReducer::reduce(StageId stage, uint64_t step) {
  if (!reduces_) return;
  const auto found = std::find_if(stages_.begin(), stages_.end(),
                                  [&](const Stage& each) { return each.index() == stage; });
  const auto s = static_cast<std::size_t>(found - stages_.begin());
  if (is_reduced_[s]) return;
  is_reduced_[s] = true;
  for (const ShardUnit* const unit : shards_.units_of(stage)) {
    Reduction& reduction = reductions_[static_cast<std::size_t>(unit->number())];
    if (--reduction.missing == 0) begin(reduction, step);
  }
}

void PieceReducer::begin(Reduction& reduction, uint64_t step) {
  const at::NoGradGuard no_grad;
  ShardUnit& unit = *reduction.unit;
  std::vector<at::Tensor> grads;
  for (const ShardUnit::Parameter& parameter : unit.parameters()) {
    at::Tensor grad = parameter.tensor.grad();
    if (grad.defined() && grad.strides() != parameter.tensor.strides()) {
      grad = at::empty_strided(parameter.tensor.sizes(), parameter.tensor.strides(), grad.options())
                 .copy_(grad);
    }
    grads.push_back(grad.defined() ? in_memory_order(grad) : at::Tensor());
  }
  const TransferId id{step, Direction::kGradPieces, unit.stage(), StageId(unit.number()),
                      MicrobatchId(0)};
  reduction.scatter.emplace(transport_, shards_.group(), id, unit.layout(), std::move(grads),
                            at::zeros_like(unit.piece()));
}

void PieceReducer::poll() {
  for (Reduction& reduction : reductions_) {
    if (!reduction.scatter || reduction.is_taken) continue;
    if (reduction.scatter->poll() && reduction.scatter->is_sent()) take(reduction);
  }
}

void PieceReducer::wait(StageId stage, Deadline deadline) {
  const ProgressMark::Waiting waiting(progress_, "pieces of gradients");
  for (const ShardUnit* const unit : shards_.units_of(stage)) {
    Reduction& reduction = reductions_[static_cast<std::size_t>(unit->number())];
    if (reduction.scatter) reduction.scatter->wait(deadline);
  }
}

// The sums are the gradient of the piece, and the gradients of the parameters are released.
void PieceReducer::take(Reduction& reduction) {
  ShardUnit& unit = *reduction.unit;
  reduction.is_taken = true;
  unit.has_grad() = reduction.scatter->has_grad();
  const bool any = std::ranges::count(unit.has_grad(), true) > 0;
  if (any) unit.piece().mutable_grad() = reduction.scatter->sums();
  reduction.scatter.reset();
  release_grads(unit);
}

void PieceReducer::release_grads(const ShardUnit& unit) {
  for (const ShardUnit::Parameter& parameter : unit.parameters()) {
    parameter.tensor.mutable_grad().reset();
  }
}

void PieceReducer::finish(uint64_t step, Deadline deadline) {
  for (const Stage& stage : stages_) reduce(stage.index(), step);
  const ProgressMark::Waiting waiting(progress_, "pieces of gradients");
  for (Reduction& reduction : reductions_) {
    if (reduction.scatter) reduction.scatter->wait(deadline);
  }
  for (Reduction& reduction : reductions_) {
    if (!reduction.scatter) continue;
    for (const PendingPtr& send : reduction.scatter->take_sends()) {
      transport_.wait_send(send, deadline);
    }
    take(reduction);
  }
}

void PieceReducer::add_earlier() {
  if (!std::exchange(is_started_, false)) return;
  const at::NoGradGuard no_grad;
  for (Reduction& reduction : reductions_) {
    ShardUnit& unit = *reduction.unit;
    reduction.is_local = !reduces_;
    reduction.local.clear();
    at::Tensor& grad = unit.piece().mutable_grad();
    // The sum over the copies of a tied weight has a gradient if any of the copies has one.
    if (unit.is_tied()) unit.has_grad().assign(unit.segments().size(), grad.defined());
    const at::Tensor earlier = std::move(reduction.earlier);
    reduction.earlier.reset();
    if (!earlier.defined()) continue;
    for (std::size_t i = 0; i < unit.segments().size(); ++i) {
      const ShardSegment& part = unit.segments()[i];
      if (!unit.has_grad()[i]) continue;
      const at::Tensor now = grad.narrow(0, part.at, part.size());
      at::Tensor sum = earlier.narrow(0, part.at, part.size());
      reduction.had_grad[i] ? sum.add_(now) : sum.copy_(now);
      reduction.had_grad[i] = true;
    }
    grad = earlier;
    unit.has_grad() = reduction.had_grad;
  }
}

void PieceReducer::abandon() {
  if (!std::exchange(is_started_, false)) return;
  for (Reduction& reduction : reductions_) {
    ShardUnit& unit = *reduction.unit;
    reduction.scatter.reset();
    unit.piece().mutable_grad() = std::move(reduction.earlier);
    reduction.earlier.reset();
    unit.has_grad() = reduction.had_grad;
    for (std::size_t p = 0; p < reduction.local.size(); ++p) {
      unit.parameters()[p].tensor.mutable_grad() = std::move(reduction.local[p]);
    }
    reduction.local.clear();
  }
}

}  // namespace stagecraft
