#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "stagecraft/transport/core/exchange.h"
#include "stagecraft/transport/device/device_fence.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft::detail {

/// The payload between ranks of one process.
using LocalPayload = FencedValue;
using LocalExchange = Exchange<LocalPayload>;

/// One rank's transport in a local world. The world lives as long as any of its transports.
class LocalTransport final : public Transport {
 public:
  LocalTransport(std::shared_ptr<LocalExchange> exchange, Rank rank);
  ~LocalTransport() override;

  Rank rank() const override { return rank_; }
  int32_t num_ranks() const override;

  PendingPtr post_send(Rank to, const TransferId& id, c10::IValue value) override;
  PendingPtr post_receive(Rank from, const TransferId& id) override;
  void wait_send(const PendingPtr& send, Deadline deadline) override;
  Received wait_receive(const PendingPtr& receive, Deadline deadline) override;

  void barrier(Deadline deadline) override;
  c10::IValue broadcast(c10::IValue value, Rank root, Deadline deadline) override;
  at::Tensor all_reduce(const at::Tensor& tensor, Deadline deadline) override;
  std::vector<c10::IValue> all_gather(c10::IValue value, Deadline deadline) override;

  void abort(AbortReason reason) override;
  std::shared_ptr<const AbortReason> abort_reason() const override;
  void recover(Deadline deadline) override;

  void publish(std::function<RankProgress()> tell) override;
  std::vector<HeardProgress> progress() const override;

 private:
  std::shared_ptr<LocalExchange> exchange_;
  Rank rank_;
};

}  // namespace stagecraft::detail
