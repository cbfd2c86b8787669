#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/base/deadline.h"
#include "stagecraft/base/index.h"
#include "stagecraft/transport/core/abort_reason.h"
#include "stagecraft/transport/core/pending.h"
#include "stagecraft/transport/core/progress.h"
#include "stagecraft/transport/core/transfer_id.h"

namespace stagecraft {

/// A received value.
struct Received {
  c10::IValue value;
  /// When it was sent, on the clock of Deadline: a receiver that waited before this time waited for
  /// the sender, not for the transfer. If clocks cannot be compared, when it arrived.
  Deadline::Clock::time_point sent;
};

/// One rank's endpoint of a world, through which the ranks of a pipeline send each other values.
///
/// A value is a tree (tree/tree.h): tensors, numbers, strings and None, nested in any way. Tensors
/// keep their strides and requires_grad, and must not have autograd history (ArgumentError). A sent
/// tensor belongs to the receiver: the sender must not write to it afterwards. Results of broadcast
/// and all_gather may be shared with other ranks: do not write to them. Shapes may differ from
/// transfer to transfer.
///
/// All calls come from the rank's own thread, except abort, abort_reason and progress, which any
/// thread may call. Every wait throws TimeoutError at its deadline, which names what it waited for
/// and from which rank. It throws PeerError as soon as the world is aborted, with message, rank and
/// cause of the reason. Any other misuse is ArgumentError.
class Transport {
 public:
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  virtual Rank rank() const = 0;
  virtual int32_t num_ranks() const = 0;

  // Transfers ---------------------------------------------------------------------------------

  /// Connects to ranks, in both directions, if the transport connects two ranks only when they
  /// first transfer a value (NCCL). Otherwise it does nothing. `peers` are in ascending order. Each
  /// of them makes the same call, with this rank among its peers.
  ///
  /// Without this call, pairs of ranks connect at their first value and may deadlock: before CUDA
  /// allocates the memory of a new connection, it may wait for all work on the device, including
  /// the transfer of a different pair. This call connects one pair after the other, in the same
  /// order on all ranks.
  virtual void connect(std::span<const Rank> peers, Deadline deadline);
  /// Whether work of a device may wait for a different rank (NCCL). Calls of CUDA that wait for the
  /// whole device then wait for that rank, too.
  virtual bool waits_on_device() const { return false; }

  /// Posts a send; does not wait. `to` may be this rank. Only one send for each identity and pair
  /// of ranks may be pending.
  virtual PendingPtr post_send(Rank to, const TransferId& id, c10::IValue value) = 0;
  /// Posts a receive; does not wait. Only one receive for each identity and pair of ranks may be
  /// pending. It may be posted before or after the send, and in any order with other receives.
  virtual PendingPtr post_receive(Rank from, const TransferId& id) = 0;
  /// Waits until the value's memory may be released: the value was handed over, or copied.
  virtual void wait_send(const PendingPtr& send, Deadline deadline) = 0;
  /// Waits for the value, once for each receive. The value is on the device on which it was sent.
  /// If this process has no such device, it is on the CPU; if it came over NCCL, on this rank's
  /// GPU.
  ///
  /// The device may still be transferring the value when this returns; its current stream waits for
  /// that. A loss on the device is detected later: the value is known to be complete when a
  /// collective that was called afterwards has returned.
  virtual Received wait_receive(const PendingPtr& receive, Deadline deadline) = 0;

  // Collectives: called by all ranks in the same order -------------------------------------------

  /// Waits until all ranks have called it. Values received before can no longer be lost.
  virtual void barrier(Deadline deadline) = 0;
  /// Returns the root's value on every rank. The values of other ranks are ignored.
  virtual c10::IValue broadcast(c10::IValue value, Rank root, Deadline deadline) = 0;
  /// Returns the sum over the ranks, added in the order of the ranks, so that all ranks get the
  /// same bits. Shapes and dtypes must be equal (MetadataError on every rank). The result is a new
  /// tensor on the device of the argument.
  virtual at::Tensor all_reduce(const at::Tensor& tensor, Deadline deadline) = 0;
  /// Returns the values of all ranks, by rank.
  virtual std::vector<c10::IValue> all_gather(c10::IValue value, Deadline deadline) = 0;

  // Failure -------------------------------------------------------------------------------------

  /// Ends all transfers and collectives, on every rank: waits throw PeerError within a second, and
  /// values that were not received are released. Only the first reason counts. Until `recover`,
  /// posts and waits throw, too.
  virtual void abort(AbortReason reason) = 0;
  /// Null while the world is not aborted; then it costs one atomic read.
  virtual std::shared_ptr<const AbortReason> abort_reason() const = 0;
  /// Brings the world back into use. Called by all ranks, aborted or not: waits for all of them,
  /// then forgets the reason and every transfer that was not received.
  virtual void recover(Deadline deadline) = 0;

  /// Whether a step over this transport has failed since the last recovery. Runners that share the
  /// transport set and read this, so that the next step recovers, even if it belongs to a different
  /// runner. Used by the rank's own thread only.
  bool needs_recovery() const { return needs_recovery_; }
  void set_needs_recovery(bool needs) { needs_recovery_ = needs; }

  // Progress, for diagnosing hangs ----------------------------------------------------------------

  /// Sets the function that reports this rank's progress. Any thread may call it at any time, until
  /// it is replaced. Empty: no progress is reported.
  virtual void publish(std::function<RankProgress()> tell);
  /// The progress of all ranks: current for ranks of this process, from the last heartbeat for
  /// others.
  virtual std::vector<HeardProgress> progress() const;

 protected:
  Transport() = default;

 private:
  bool needs_recovery_ = false;
};

}  // namespace stagecraft
