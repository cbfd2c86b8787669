#include "stagecraft/runtime/tied_weights.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/add.h>

#include "stagecraft/base/check.h"
#include "stagecraft/tree/tensor_meta.h"

namespace stagecraft {

namespace {

at::Tensor find_parameter(std::span<Stage> stages, const ParameterRef& ref) {
  for (const Stage& stage : stages) {
    if (stage.index() != ref.stage) continue;
    std::vector<std::string> names;
    for (const auto& [name, parameter] : stage.parameters()) {
      if (name == ref.name) return parameter;
      names.push_back(name);
    }
    throw ArgumentError(fmt::format("tied weights: stage {} has no parameter \"{}\"; it has [{}]",
                                    ref.stage.value(), ref.name, fmt::join(names, ", ")));
  }
  return {};
}

}  // namespace

TiedWeights::TiedWeights(Transport& transport, const Placement& placement,
                         const ReplicaPlace& place, std::span<Stage> stages,
                         const std::vector<TiedWeight>& groups, const ParameterShards* shards)
    : transport_(transport), has_replicas_(place.replicas > 1) {
  for (std::size_t number = 0; number < groups.size(); ++number) {
    Group group;
    for (const ParameterRef& ref : groups[number]) {
      Holder holder{ref.stage, place.in_world(placement.get_rank(ref.stage))};
      if (holder.rank == transport.rank()) {
        holder.copy = group.copies.size();
        group.copies.push_back({find_parameter(stages, ref), {}, {}});
        require<ArgumentError>(
            group.copies.back().parameter.sizes() == group.copies.front().parameter.sizes(),
            "tied weights: the copies differ: {} and {}", describe(group.copies.front().parameter),
            describe(group.copies.back().parameter));
      }
      group.holders.push_back(holder);
    }
    std::sort(group.holders.begin(), group.holders.end(),
              [](const Holder& a, const Holder& b) { return a.stage > b.stage; });
    const auto twice =
        std::adjacent_find(group.holders.begin(), group.holders.end(),
                           [](const Holder& a, const Holder& b) { return a.stage == b.stage; });
    require<ArgumentError>(group.holders.size() >= 2 && twice == group.holders.end(),
                           "tied weights: expected copies on two or more different stages");
    if (group.copies.empty()) continue;
    if (shards != nullptr && shards->kind() >= ShardKind::kGradients) {
      for (Copy& copy : group.copies) {
        if (const ShardUnit* unit = shards->find_unit(copy.parameter))
          copy.parameter = unit->piece();
      }
    }
    group.number = number;
    groups_.push_back(std::move(group));
  }
}

bool TiedWeights::is_copy(const at::Tensor& parameter) const {
  return std::ranges::any_of(groups_, [&](const Group& group) {
    return std::ranges::any_of(group.copies,
                               [&](const Copy& copy) { return copy.parameter.is_same(parameter); });
  });
}

bool TiedWeights::is_first_copy(const at::Tensor& parameter) const {
  for (const Group& group : groups_) {
    for (const Holder& holder : group.holders) {
      const bool is_here = holder.rank == transport_.rank();
      if (is_here && group.copies[holder.copy].parameter.is_same(parameter)) {
        return holder.stage == group.holders.back().stage;
      }
    }
  }
  return true;
}

void TiedWeights::start() {
  is_started_ = true;
  is_sent_ = false;
  if (has_replicas_) return;
  for (Group& group : groups_) {
    for (Copy& copy : group.copies) copy.earlier = std::move(copy.parameter.mutable_grad());
  }
}

void TiedWeights::finish(uint64_t step, std::chrono::nanoseconds timeout) {
  const Deadline deadline = Deadline::after(timeout);
  if (!is_sent_) send(step);
  for (Group& group : groups_) {
    for (const Holder& holder : group.holders) {
      if (holder.rank == transport_.rank()) sum_grads(group, holder, step, deadline);
    }
  }
  for (const PendingPtr& send : std::exchange(sends_, {})) transport_.wait_send(send, deadline);
  // From here on nothing can fail.
  for (Group& group : groups_) {
    for (Copy& copy : group.copies) {
      if (copy.earlier.defined() && copy.sum.defined()) copy.earlier.add_(copy.sum);
      copy.parameter.mutable_grad() = std::move(copy.earlier.defined() ? copy.earlier : copy.sum);
      copy.earlier.reset();
      copy.sum.reset();
    }
  }
  is_started_ = false;
}

std::vector<Rank> TiedWeights::peers() const {
  std::vector<Rank> peers;
  for (const Group& group : groups_) {
    for (const Holder& holder : group.holders) {
      if (holder.rank != transport_.rank()) peers.push_back(holder.rank);
    }
  }
  return peers;
}

void TiedWeights::send(uint64_t step) {
  is_sent_ = true;
  for (const Group& group : groups_) {
    for (const Holder& from : group.holders) {
      if (from.rank != transport_.rank()) continue;
      const at::Tensor& grad = group.copies[from.copy].parameter.grad();
      const c10::IValue value = grad.defined() ? c10::IValue(grad.detach()) : c10::IValue();
      for (const Holder& to : group.holders) {
        if (to.rank == transport_.rank()) continue;
        sends_.push_back(transport_.post_send(to.rank, id(group, from, to, step), value));
      }
    }
  }
}

void TiedWeights::sum_grads(Group& group, const Holder& to, uint64_t step, Deadline deadline) {
  Copy& copy = group.copies[to.copy];
  for (const Holder& from : group.holders) {
    at::Tensor grad;
    if (from.rank == transport_.rank()) {
      grad = group.copies[from.copy].parameter.grad();
      if (grad.defined()) grad = grad.to(copy.parameter.device());
    } else {
      const PendingPtr receive = transport_.post_receive(from.rank, id(group, from, to, step));
      const c10::IValue value = transport_.wait_receive(receive, deadline).value;
      if (value.isTensor()) grad = value.toTensor().to(copy.parameter.device());
    }
    if (!grad.defined()) continue;
    require<MetadataError>(grad.sizes() == copy.parameter.sizes(),
                           "tied weights: the copy on stage {} has a different shape: {} and {}",
                           from.stage.value(), describe(copy.parameter), describe(grad));
    copy.sum = copy.sum.defined() ? at::add(copy.sum, grad) : grad.clone();
  }
}

TransferId TiedWeights::id(const Group& group, const Holder& from, const Holder& to,
                           uint64_t step) {
  return {step, Direction::kTiedWeight, from.stage, to.stage,
          MicrobatchId(static_cast<int32_t>(group.number))};
}

void TiedWeights::abandon() {
  sends_.clear();
  if (!std::exchange(is_started_, false)) return;
  for (Group& group : groups_) {
    for (Copy& copy : group.copies) {
      copy.parameter.mutable_grad() = std::move(copy.earlier);
      copy.sum.reset();
    }
  }
}

}  // namespace stagecraft
