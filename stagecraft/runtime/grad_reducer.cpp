#include "stagecraft/runtime/grad_reducer.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "stagecraft/base/check.h"
#include "stagecraft/shard/reduce_scatter.h"
#include "stagecraft/tree/describe.h"
#include "stagecraft/tree/tensor_meta.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {

GradReducer::GradReducer(Transport& transport, const ReplicaPlace& place, std::span<Stage> stages,
                         const TiedWeights& ties, ProgressMark& progress)
    : transport_(transport), place_(place), stages_(stages), progress_(progress) {
  if (place.replicas == 1) return;
  by_stage_.resize(stages.size());
  std::vector<int64_t> load(static_cast<std::size_t>(place.replicas));
  for (std::size_t s = 0; s < stages.size(); ++s) {
    for (const auto& [name, tensor] : stages[s].parameters()) {
      auto known = std::find_if(
          parameters_.begin(), parameters_.end(),
          [&tensor = tensor](const Parameter& other) { return other.tensor.is_same(tensor); });
      if (known == parameters_.end()) {
        // The replica with the fewest bytes so far.
        const auto least = std::min_element(load.begin(), load.end());
        *least += static_cast<int64_t>(tensor.nbytes());
        parameters_.push_back({.tensor = tensor,
                               .owner = static_cast<int32_t>(least - load.begin()),
                               .is_tied = ties.is_copy(tensor),
                               .is_first_copy = ties.is_first_copy(tensor)});
        known = parameters_.end() - 1;
      }
      const auto number = static_cast<std::size_t>(known - parameters_.begin());
      auto& own = by_stage_[s];
      if (std::find(own.begin(), own.end(), number) != own.end()) continue;
      ++known->holders;
      own.push_back(number);
    }
  }
}

int32_t GradReducer::num_local() const {
  return static_cast<int32_t>(std::ranges::count_if(
      parameters_, [](const Parameter& parameter) { return parameter.is_local; }));
}

// The copies of a tied weight are local together, or the gradient of one that is frozen would be
// left out of their sum.
bool GradReducer::is_included(const Parameter& parameter, bool reduces) {
  return parameter.is_local ||
         (!reduces && (parameter.tensor.requires_grad() || parameter.is_tied));
}

void GradReducer::start(bool reduces) {
  if (place_.replicas == 1) return;
  // Backward adds to a copy of the gradient, because the step may fail. Making a copy may fail,
  // too, so all copies are made before anything is changed.
  std::vector<at::Tensor> copies(parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i];
    const bool is_kept = parameter.is_first_copy && (parameter.is_local || place_.replica() == 0);
    const at::Tensor& grad = parameter.tensor.grad();
    if (is_included(parameter, reduces) && is_kept && grad.defined()) copies[i] = grad.clone();
  }
  is_reduced_.assign(stages_.size(), false);
  // From here on nothing can fail.
  is_started_ = true;
  reduces_ = reduces;
  bundles_.clear();
  sends_.clear();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    parameter.missing = parameter.holders;
    parameter.is_included = is_included(parameter, reduces);
    parameter.earlier = std::exchange(parameter.tensor.mutable_grad(), std::move(copies[i]));
  }
}

void GradReducer::reduce(StageId stage, uint64_t step) {
  if (place_.replicas == 1 || !reduces_) return;
  const auto found = std::find_if(stages_.begin(), stages_.end(),
                                  [&](const Stage& each) { return each.index() == stage; });
  const auto s = static_cast<std::size_t>(found - stages_.begin());
  if (is_reduced_[s]) return;
  is_reduced_[s] = true;
  Bundle bundle{.stage = stage, .step = step};
  for (const std::size_t i : by_stage_[s]) {
    // requires_grad may change between steps, in the same way on all replicas.
    const Parameter& parameter = parameters_[i];
    if (--parameters_[i].missing == 0 && (parameter.tensor.requires_grad() || parameter.is_local)) {
      bundle.parameters.push_back(i);
    }
  }
  if (bundle.parameters.empty()) return;
  post_receives(bundle);
  for (int32_t r = 0; r < place_.replicas; ++r) {
    if (r != place_.replica()) send(bundle, r, owned(bundle, r));
  }
  bundles_.push_back(std::move(bundle));
}

void GradReducer::poll() {
  for (Bundle& bundle : bundles_) {
    if (bundle.phase == Phase::kDone || !has_arrived(bundle)) continue;
    const Deadline deadline(Deadline::Clock::time_point::max());
    if (bundle.phase == Phase::kParts) {
      add_up(bundle, deadline);
    } else {
      take_sums(bundle, deadline);
    }
  }
}

void GradReducer::wait(StageId stage, Deadline deadline) {
  for (Bundle& bundle : bundles_) {
    if (bundle.stage != stage) continue;
    if (bundle.phase == Phase::kParts) add_up(bundle, deadline);
    if (bundle.phase == Phase::kSums) take_sums(bundle, deadline);
  }
}

void GradReducer::finish(uint64_t step, Deadline deadline) {
  if (place_.replicas == 1 || !reduces_) return;
  for (const Stage& stage : stages_) reduce(stage.index(), step);
  for (const Phase phase : {Phase::kParts, Phase::kSums}) {
    for (Bundle& bundle : bundles_) {
      if (bundle.phase != phase) continue;
      if (phase == Phase::kParts) {
        add_up(bundle, deadline);
      } else {
        take_sums(bundle, deadline);
      }
    }
  }
  const ProgressMark::Waiting waiting(progress_, "the other replicas to take gradients");
  for (const PendingPtr& pending : sends_) transport_.wait_send(pending, deadline);
  bundles_.clear();
  sends_.clear();
}

void GradReducer::add_earlier() {
  if (!std::exchange(is_started_, false)) return;
  const at::NoGradGuard no_grad;
  for (Parameter& parameter : parameters_) {
    parameter.is_local = !reduces_ && parameter.is_included;
    if (std::exchange(parameter.is_included, false)) parameter.earlier.reset();
    if (!parameter.earlier.defined()) continue;
    at::Tensor& grad = parameter.tensor.mutable_grad();
    if (grad.defined()) parameter.earlier.add_(grad);
    grad = std::move(parameter.earlier);
    parameter.earlier.reset();
  }
}

void GradReducer::abandon() {
  bundles_.clear();
  sends_.clear();
  if (!std::exchange(is_started_, false)) return;
  for (Parameter& parameter : parameters_) {
    parameter.tensor.mutable_grad() = std::move(parameter.earlier);
    parameter.earlier.reset();
  }
}

TransferId GradReducer::id(const Bundle& bundle, Phase phase) {
  return {bundle.step, Direction::kReplica, bundle.stage, bundle.stage,
          MicrobatchId(static_cast<int32_t>(phase))};
}

std::vector<std::size_t> GradReducer::owned(const Bundle& bundle, int32_t replica) const {
  std::vector<std::size_t> which;
  for (const std::size_t i : bundle.parameters) {
    if (is_owned_by(parameters_[i], replica)) which.push_back(i);
  }
  return which;
}

void GradReducer::send(const Bundle& bundle, int32_t replica,
                       const std::vector<std::size_t>& which) {
  if (which.empty()) return;
  std::vector<c10::IValue> grads;
  for (const std::size_t i : which) {
    const at::Tensor& grad = parameters_[i].tensor.grad();
    grads.push_back(grad.defined() ? c10::IValue(grad.detach()) : c10::IValue());
  }
  sends_.push_back(transport_.post_send(place_.in_replica(replica), id(bundle, bundle.phase),
                                        tree::tuple(std::move(grads))));
}

// Posts the receives of the phase. In kParts, all replicas send their gradients of the parameters
// that this replica sums. In kSums, each replica sends its sums.
void GradReducer::post_receives(Bundle& bundle) {
  bundle.receives.assign(static_cast<std::size_t>(place_.replicas), nullptr);
  const bool adds_up = !owned(bundle, place_.replica()).empty();
  for (int32_t r = 0; r < place_.replicas; ++r) {
    if (r == place_.replica()) continue;
    const bool comes = bundle.phase == Phase::kParts ? adds_up : !owned(bundle, r).empty();
    if (!comes) continue;
    bundle.receives[static_cast<std::size_t>(r)] =
        transport_.post_receive(place_.in_replica(r), id(bundle, bundle.phase));
  }
}

bool GradReducer::has_arrived(const Bundle& bundle) const {
  return std::all_of(bundle.receives.begin(), bundle.receives.end(),
                     [](const PendingPtr& each) { return !each || each->is_done(); });
}

std::vector<at::Tensor> GradReducer::take(Bundle& bundle, int32_t replica,
                                          const std::vector<std::size_t>& which,
                                          Deadline deadline) {
  const auto from = static_cast<std::size_t>(replica);
  const PendingPtr receive = std::move(bundle.receives[from]);
  const ProgressMark::Waiting waiting(progress_, place_.in_replica(replica),
                                      id(bundle, bundle.phase));
  const c10::IValue value = transport_.wait_receive(receive, deadline).value;
  require<MetadataError>(value.isTuple() && value.toTupleRef().elements().size() == which.size(),
                         "replica {} sent {}, expected the gradients of {} parameters of stage {}",
                         replica, describe(value), which.size(), bundle.stage.value());
  std::vector<at::Tensor> grads;
  for (std::size_t i = 0; i < which.size(); ++i) {
    const c10::IValue& entry = value.toTupleRef().elements()[i];
    if (entry.isNone()) {
      grads.emplace_back();
      continue;
    }
    const at::Tensor& parameter = parameters_[which[i]].tensor;
    require<MetadataError>(entry.isTensor() && entry.toTensor().sizes() == parameter.sizes(),
                           "stage {}: replica {} has a parameter of a different shape: expected a "
                           "gradient for {}, got {}",
                           bundle.stage.value(), replica, describe(parameter), describe(entry));
    grads.push_back(entry.toTensor().to(parameter.device()));
  }
  return grads;
}

void GradReducer::add_up(Bundle& bundle, Deadline deadline) {
  const at::NoGradGuard no_grad;
  const std::vector<std::size_t> which = owned(bundle, place_.replica());
  std::vector<std::vector<at::Tensor>> parts(which.size());  // by parameter, then by replica
  for (int32_t r = 0; r < place_.replicas && !which.empty(); ++r) {
    const bool is_own = r == place_.replica();
    const std::vector<at::Tensor> others =
        is_own ? std::vector<at::Tensor>() : take(bundle, r, which, deadline);
    for (std::size_t i = 0; i < which.size(); ++i) {
      parts[i].push_back(is_own ? parameters_[which[i]].tensor.grad() : others[i]);
    }
  }
  for (std::size_t i = 0; i < which.size(); ++i) {
    // The sum never uses the memory of a gradient, which belongs to the replica that it was sent
    // to.
    parameters_[which[i]].tensor.mutable_grad() = sum_in_order(parts[i]);
    parts[i].clear();
  }
  if (place_.replicas == 2) {
    bundle.phase = Phase::kDone;
    return;
  }
  bundle.phase = Phase::kSums;
  post_receives(bundle);
  for (int32_t r = 0; r < place_.replicas; ++r) {
    if (r != place_.replica()) send(bundle, r, which);
  }
}

void GradReducer::take_sums(Bundle& bundle, Deadline deadline) {
  for (int32_t r = 0; r < place_.replicas; ++r) {
    if (!bundle.receives[static_cast<std::size_t>(r)]) continue;
    const std::vector<std::size_t> which = owned(bundle, r);
    std::vector<at::Tensor> sums = take(bundle, r, which, deadline);
    for (std::size_t i = 0; i < which.size(); ++i) {
      // A copy, because ranks that are threads share the memory of a sum.
      parameters_[which[i]].tensor.mutable_grad() =
          sums[i].defined() ? sums[i].clone() : at::Tensor();
    }
  }
  bundle.phase = Phase::kDone;
}

}  // namespace stagecraft
