#include "stagecraft/train/update_measures.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <span>
#include <utility>

#include <fmt/format.h>

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty_like.h>

#include "stagecraft/train/clip.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {

double UpdateLosses::sum(const std::vector<at::Tensor>& read) const {
  double sum = 0;
  for (std::size_t m = 0; m < losses.size(); ++m) sum += weights[m] * read[m].item<double>();
  return sum;
}

// Each rank sends the norms of the states whose first stage it has.
void UpdateMeasures::measure(TrainStep& step, const UpdateLosses& losses) {
  if (world_.replicas() > 1) return measure_replicas(step, losses);
  const std::vector<ModelState>& here = state_.here();
  std::vector<at::Tensor> read = losses.losses;
  const std::vector<at::Tensor> on_device = norms_of_grads(here);
  read.insert(read.end(), on_device.begin(), on_device.end());
  read = read_scalars(read);
  step.loss = losses.sum(read);
  const std::span norms = std::span(read).subspan(losses.losses.size());
  std::vector<c10::IValue> told = {world_.bubble_share()};
  for (std::size_t i = 0; i < here.size(); ++i) {
    if (!norms[i].defined() || !world_.has_stage(here[i].stage)) continue;
    told.push_back(tree::tuple({place_of(here[i].name), norms[i]}));
  }
  std::vector<at::Tensor> all(state_.all().size());
  const std::vector<c10::IValue> ranks = world_.gather(tree::tuple(std::move(told)));
  for (const c10::IValue& rank : ranks) {
    const auto& values = rank.toTupleRef().elements();
    for (std::size_t i = 1; i < values.size(); ++i) {
      const auto& entry = values[i].toTupleRef().elements();
      all[static_cast<std::size_t>(entry[0].toInt())] = entry[1].toTensor();
    }
  }
  step.bubble_share = ranks.front().toTupleRef().elements()[0].toDouble();
  step.grad_norm = norm_of(all);
}

// Each of several replicas may have a piece of a gradient. The norm of a gradient is computed from
// the sums of its blocks, so that it does not depend on the pieces.
void UpdateMeasures::measure_replicas(TrainStep& step, const UpdateLosses& losses) {
  const at::NoGradGuard no_grad;
  step.loss = losses.sum(read_scalars(losses.losses));
  const bool is_told = world_.shards() || world_.place().replica() == 0;
  std::vector<c10::IValue> told = {world_.bubble_share()};
  for (const ModelState& state : state_.here()) {
    if (!is_told || !state.is_trained() || !world_.has_stage(state.stage)) continue;
    at::Tensor grad = state.tensor().grad();
    if (!grad.defined()) continue;
    if (grad.strides() != state.tensor().strides()) {
      grad = at::empty_like(state.tensor()).detach().copy_(grad);
    }
    if (!grad.is_non_overlapping_and_dense()) grad = grad.contiguous();
    told.push_back(
        tree::tuple({place_of(state.name), state.begin, block_squares(in_memory_order(grad))}));
  }
  const std::vector<c10::IValue> ranks = world_.gather_all(tree::tuple(std::move(told)));
  std::vector<std::map<int64_t, at::Tensor>> sums(state_.all().size());  // by place, then begin
  for (const c10::IValue& rank : ranks) {
    const auto& values = rank.toTupleRef().elements();
    for (std::size_t i = 1; i < values.size(); ++i) {
      const auto& entry = values[i].toTupleRef().elements();
      sums[static_cast<std::size_t>(entry[0].toInt())][entry[1].toInt()] = entry[2].toTensor();
    }
  }
  std::vector<at::Tensor> norms;
  for (const auto& parts : sums) {
    if (parts.empty()) continue;
    std::vector<at::Tensor> ordered;
    for (const auto& [begin, part] : parts) ordered.push_back(part);
    norms.push_back(norm_of_blocks(ordered));
  }
  step.bubble_share = ranks.front().toTupleRef().elements()[0].toDouble();
  step.grad_norm = norm_of(norms);
}

std::string UpdateMeasures::describe_problem(double norm) {
  const ModelState* const bad = find_infinite_grad(state_.here());
  const auto none = static_cast<int64_t>(state_.all().size());
  int64_t first = none;
  for (const c10::IValue& place : world_.gather_all(bad == nullptr ? none : place_of(bad->name))) {
    first = std::min(first, place.toInt());
  }
  if (first < none) {
    return describe_infinite_grad(state_.all()[static_cast<std::size_t>(first)].name);
  }
  return fmt::format("the norm of the gradients is {}: training has diverged", norm);
}

// The index of a state among all states.
int64_t UpdateMeasures::place_of(const std::string& name) const {
  const auto& all = state_.all();
  return std::find_if(all.begin(), all.end(),
                      [&](const ModelState& state) { return state.name == name; }) -
         all.begin();
}

}  // namespace stagecraft
