#include "stagecraft/transport/local/local_transport.h"

#include <string>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>

#include "stagecraft/base/check.h"

namespace stagecraft::detail {
namespace {

LocalPayload pack(c10::IValue value) {
  auto fence = DeviceFence::record(value);
  return {std::move(value), std::move(fence)};
}

// The payload of a collective is shared with other ranks, so it is copied, not moved.
c10::IValue unpack(const LocalPayload& payload) {
  if (payload.fence) payload.fence->join(payload.value);
  return payload.value;
}

std::string describe_tensor(const at::Tensor& tensor) {
  return fmt::format("{} of shape [{}]", c10::toString(tensor.scalar_type()),
                     fmt::join(tensor.sizes(), ", "));
}

void require_same(const std::vector<at::Tensor>& tensors) {
  for (std::size_t i = 1; i < tensors.size(); ++i) {
    require<MetadataError>(tensors[i].scalar_type() == tensors[0].scalar_type() &&
                               tensors[i].sizes() == tensors[0].sizes(),
                           "all_reduce: rank 0 passed {}, rank {} passed {}",
                           describe_tensor(tensors[0]), i, describe_tensor(tensors[i]));
  }
}

}  // namespace

LocalTransport::LocalTransport(std::shared_ptr<LocalExchange> exchange, Rank rank)
    : exchange_(std::move(exchange)), rank_(rank) {
  exchange_->require_rank(rank, "transport");
}

LocalTransport::~LocalTransport() {
  // First: the published function may refer to objects that end soon. It is not called any more
  // when `set` has returned.
  exchange_->progress_source(rank_).set({});
  exchange_->leave(rank_);
}

int32_t LocalTransport::num_ranks() const {
  return exchange_->num_ranks();
}

PendingPtr LocalTransport::post_send(Rank to, const TransferId& id, c10::IValue value) {
  return exchange_->post_send(rank_, to, id, pack(std::move(value)));
}

PendingPtr LocalTransport::post_receive(Rank from, const TransferId& id) {
  return exchange_->post_receive(rank_, from, id);
}

void LocalTransport::wait_send(const PendingPtr& send, Deadline deadline) {
  exchange_->wait_send(rank_, send, deadline);
}

Received LocalTransport::wait_receive(const PendingPtr& receive, Deadline deadline) {
  auto arrival = exchange_->wait_receive(rank_, receive, deadline);
  if (arrival.payload.fence) arrival.payload.fence->join(arrival.payload.value);
  return {std::move(arrival.payload.value), arrival.sent};
}

void LocalTransport::barrier(Deadline deadline) {
  exchange_->gather(rank_, "barrier", LocalPayload(), deadline);
}

c10::IValue LocalTransport::broadcast(c10::IValue value, Rank root, Deadline deadline) {
  exchange_->require_rank(root, "broadcast");
  auto payload = root == rank_ ? pack(std::move(value)) : LocalPayload();
  const auto all = exchange_->gather(rank_, fmt::format("broadcast from rank {}", root.value()),
                                     std::move(payload), deadline);
  return unpack((*all)[root.position()]);
}

at::Tensor LocalTransport::all_reduce(const at::Tensor& tensor, Deadline deadline) {
  require<ArgumentError>(tensor.defined(), "all_reduce of rank {}: the tensor is undefined",
                         rank_.value());
  const at::NoGradGuard no_grad;
  // A copy: this rank may write to its tensor while others still sum it.
  auto payload = pack(tensor.detach().clone());
  const auto all = exchange_->gather(rank_, "all_reduce", std::move(payload), deadline);
  std::vector<at::Tensor> parts;
  parts.reserve(all->size());
  for (const auto& part : *all) parts.push_back(unpack(part).toTensor());
  // On every rank, with the same parts: all ranks throw the same error.
  require_same(parts);
  if (parts.size() == 1) return parts[0];
  // Not in place: parts[0] is read by the other ranks at the same time. Every rank computes the sum
  // itself, which saves a second meeting.
  auto sum = at::add(parts[0].to(tensor.device()), parts[1].to(tensor.device()));
  for (std::size_t i = 2; i < parts.size(); ++i) sum.add_(parts[i].to(tensor.device()));
  return sum;
}

std::vector<c10::IValue> LocalTransport::all_gather(c10::IValue value, Deadline deadline) {
  const auto all = exchange_->gather(rank_, "all_gather", pack(std::move(value)), deadline);
  std::vector<c10::IValue> values;
  values.reserve(all->size());
  for (const auto& payload : *all) values.push_back(unpack(payload));
  return values;
}

void LocalTransport::abort(AbortReason reason) {
  exchange_->abort(std::move(reason));
}

std::shared_ptr<const AbortReason> LocalTransport::abort_reason() const {
  return exchange_->reason();
}

void LocalTransport::recover(Deadline deadline) {
  exchange_->recover(rank_, deadline);
}

void LocalTransport::publish(std::function<RankProgress()> tell) {
  exchange_->progress_source(rank_).set(std::move(tell));
}

std::vector<HeardProgress> LocalTransport::progress() const {
  std::vector<HeardProgress> heard;
  for (Rank rank(0); rank.value() < num_ranks(); ++rank) {
    heard.push_back({.progress = exchange_->progress_source(rank).ask(),
                     .is_lost = exchange_->world().has_left(rank)});
  }
  return heard;
}

}  // namespace stagecraft::detail
