#include "stagecraft/shard/reduce_scatter.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>

#include "stagecraft/base/check.h"
#include "stagecraft/tree/describe.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {

at::Tensor sum_in_order(const std::vector<at::Tensor>& tensors) {
  at::Tensor sum;
  bool is_own = false;  // the sum has memory of its own
  for (const at::Tensor& each : tensors) {
    if (!each.defined()) continue;
    if (!sum.defined()) {
      sum = each;
    } else if (is_own) {
      sum.add_(each);
    } else {
      // Halves are added in float32 and rounded once at the end. Adding three halves directly would
      // round twice.
      const bool is_half = at::isReducedFloatingType(each.scalar_type());
      sum = is_half ? sum.to(at::kFloat).add_(each) : at::add(sum, each);
      is_own = true;
    }
  }
  if (!sum.defined()) return {};
  if (!is_own) return sum.clone();
  const auto type = std::ranges::find_if(tensors, [](const auto& t) { return t.defined(); });
  return sum.to(type->scalar_type());
}

ReduceScatter::ReduceScatter(Transport& transport, const ShardGroup& group, const TransferId& id,
                             FlatLayout layout, std::vector<at::Tensor> grads, at::Tensor sums,
                             int64_t chunk_bytes)
    : transport_(transport),
      group_(group),
      id_(id),
      layout_(std::move(layout)),
      grads_(std::move(grads)),
      sums_(std::move(sums)),
      own_(layout_.segments(group.own)),
      has_grad_(own_.size(), false),
      chunk_(std::max<int64_t>(chunk_bytes / static_cast<int64_t>(sums_.element_size()), 1)),
      num_chunks_((layout_.piece() + chunk_ - 1) / chunk_),
      receives_(static_cast<std::size_t>(num_chunks_)) {
  require<ArgumentError>(num_chunks_ <= kShardMaxChunks, "a piece of {} bytes is too large",
                         sums_.nbytes());
  for (int64_t chunk = 0; chunk < std::min(kShardWindow, num_chunks_); ++chunk) post(chunk);
}

TransferId ReduceScatter::id_of(int64_t chunk) const {
  TransferId id = id_;
  id.microbatch =
      MicrobatchId(id_.microbatch.value() * kShardMaxChunks + static_cast<int32_t>(chunk));
  return id;
}

int64_t ReduceScatter::end_of(int64_t chunk) const {
  return std::min(begin_of(chunk) + chunk_, layout_.piece());
}

at::Tensor ReduceScatter::own_part(const ShardSegment& segment) const {
  const at::Tensor& grad = grads_[segment.parameter];
  return grad.defined() ? grad.narrow(0, segment.begin, segment.size()) : at::Tensor();
}

void ReduceScatter::post(int64_t chunk) {
  auto& receives = receives_[static_cast<std::size_t>(chunk)];
  receives.resize(group_.members.size());
  for (int32_t m = 0; m < group_.size(); ++m) {
    if (m == group_.own) continue;
    receives[static_cast<std::size_t>(m)] = transport_.post_receive(group_.rank(m), id_of(chunk));
    std::vector<c10::IValue> parts;
    for (const ShardSegment& each : layout_.segments(m, begin_of(chunk), end_of(chunk))) {
      const at::Tensor part = own_part(each);
      parts.push_back(part.defined() ? c10::IValue(part) : c10::IValue());
    }
    sends_.push_back(
        transport_.post_send(group_.rank(m), id_of(chunk), tree::tuple(std::move(parts))));
  }
}

bool ReduceScatter::has_arrived(int64_t chunk) const {
  const auto& receives = receives_[static_cast<std::size_t>(chunk)];
  return std::all_of(receives.begin(), receives.end(),
                     [](const PendingPtr& each) { return !each || each->is_done(); });
}

void ReduceScatter::add_up(int64_t chunk, Deadline deadline) {
  const at::NoGradGuard no_grad;
  const std::vector<ShardSegment> segments =
      layout_.segments(group_.own, begin_of(chunk), end_of(chunk));
  std::vector<std::vector<at::Tensor>> parts(segments.size());  // by segment, then by member
  for (int32_t m = 0; m < group_.size(); ++m) {
    if (m == group_.own) {
      for (std::size_t i = 0; i < segments.size(); ++i) parts[i].push_back(own_part(segments[i]));
      continue;
    }
    const PendingPtr receive =
        std::move(receives_[static_cast<std::size_t>(chunk)][static_cast<std::size_t>(m)]);
    const c10::IValue value = transport_.wait_receive(receive, deadline).value;
    require<MetadataError>(
        value.isTuple() && value.toTupleRef().elements().size() == segments.size(),
        "stage {}: replica {} sent {}, expected gradients of {} parameters", id_.from.value(), m,
        describe(value), segments.size());
    for (std::size_t i = 0; i < segments.size(); ++i) {
      const c10::IValue& entry = value.toTupleRef().elements()[i];
      if (entry.isNone()) {
        parts[i].emplace_back();
        continue;
      }
      require<MetadataError>(entry.isTensor() && entry.toTensor().numel() == segments[i].size(),
                             "stage {}: replica {} has a parameter of a different shape: expected "
                             "{} elements of a gradient, got {}",
                             id_.from.value(), m, segments[i].size(), describe(entry));
      parts[i].push_back(entry.toTensor().to(sums_.device()));
    }
  }
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const at::Tensor sum = sum_in_order(parts[i]);
    if (!sum.defined()) continue;
    sums_.narrow(0, segments[i].at, segments[i].size()).copy_(sum);
    for (std::size_t own = 0; own < own_.size(); ++own) {
      if (own_[own].parameter == segments[i].parameter) has_grad_[own] = true;
    }
  }
  if (chunk + kShardWindow < num_chunks_) post(chunk + kShardWindow);
}

bool ReduceScatter::poll() {
  const Deadline deadline(Deadline::Clock::time_point::max());
  while (!is_done() && has_arrived(summed_)) {
    add_up(summed_, deadline);
    ++summed_;
  }
  return is_done();
}

void ReduceScatter::wait(Deadline deadline) {
  for (; !is_done(); ++summed_) add_up(summed_, deadline);
}

bool ReduceScatter::is_sent() const {
  return is_done() && std::all_of(sends_.begin(), sends_.end(),
                                  [](const PendingPtr& send) { return send->is_done(); });
}

std::vector<PendingPtr> ReduceScatter::take_sends() {
  return std::exchange(sends_, {});
}

}  // namespace stagecraft
