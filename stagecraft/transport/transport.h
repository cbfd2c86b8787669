#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/base/deadline.h"
#include "stagecraft/base/index.h"
#include "stagecraft/transport/core/abort_reason.h"
#include "stagecraft/transport/core/pending.h"
#include "stagecraft/transport/core/progress.h"
#include "stagecraft/transport/core/transfer_id.h"

namespace stagecraft {

/// What a receive brings.
struct Received {
  c10::IValue value;
  /// When it was sent, on the clock of Deadline: what a rank waited before that was not the
  /// transfer's fault. Where clocks cannot be compared, when it arrived.
  Deadline::Clock::time_point sent;
};

/// One rank's end of the world in which the ranks of a pipeline send each other values.
///
/// A value is a tree (tree/tree.h): tensors, numbers, strings, None, nested as one likes. Tensors
/// keep their strides and their requires_grad, and may not carry history (ArgumentError). A tensor
/// that is sent belongs to the receiver: the sender must not write to it afterwards; what broadcast
/// and all_gather give may be shared with the other ranks, and nobody may write to it. Shapes may
/// differ from transfer to transfer; nothing is agreed on beforehand.
///
/// Every call is made by the rank's own thread, except abort and abort_reason, which any thread may
/// make. Everything that waits throws TimeoutError at its deadline, naming what it waited for and
/// from whom, and PeerError as soon as the world is aborted: with the reason's message, rank and
/// cause. Any other misuse is ArgumentError.
class Transport {
 public:
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  virtual Rank rank() const = 0;
  virtual int32_t num_ranks() const = 0;

  // Transfers ---------------------------------------------------------------------------------

  /// Never waits. `to` may be this rank. One send for each identity and pair of ranks, until it is
  /// taken.
  virtual PendingPtr post_send(Rank to, const TransferId& id, c10::IValue value) = 0;
  /// Never waits. One receive for each identity and pair of ranks, until it is taken; it may be
  /// posted before or after the send, in any order with others.
  virtual PendingPtr post_receive(Rank from, const TransferId& id) = 0;
  /// Until the value may be let go of: it was taken over, or copied.
  virtual void wait_send(const PendingPtr& send, Deadline deadline) = 0;
  /// Until the value is there. It is on the device on which it was sent, unless that device is not
  /// this process's, or it came over NCCL: then on this rank's GPU. Once for each receive.
  ///
  /// A device may still be at it when this returns; its current stream waits, as for any other
  /// work. What NCCL loses on that way is noticed behind it: a value is whole when a collective
  /// that was called afterwards has returned.
  virtual Received wait_receive(const PendingPtr& receive, Deadline deadline) = 0;

  // Collectives: called by all ranks in the same order -------------------------------------------

  /// Every rank has come here, and nothing that was received before can be lost any more.
  virtual void barrier(Deadline deadline) = 0;
  /// The root's value on every rank; what others pass is ignored.
  virtual c10::IValue broadcast(c10::IValue value, Rank root, Deadline deadline) = 0;
  /// The sum over the ranks, added in the order of the ranks, so that all get the same bits. Shape
  /// and dtype must agree (MetadataError on every rank). A new tensor on the device of the
  /// argument.
  virtual at::Tensor all_reduce(const at::Tensor& tensor, Deadline deadline) = 0;
  /// What each rank passed, by rank.
  virtual std::vector<c10::IValue> all_gather(c10::IValue value, Deadline deadline) = 0;

  // Failure -------------------------------------------------------------------------------------

  /// Ends everything under way, on every rank: waits throw PeerError within a second, and values
  /// that were not taken are let go of. Only the first reason counts; until `recover`, whatever is
  /// posted or waited for throws too.
  virtual void abort(AbortReason reason) = 0;
  /// Null while nothing has failed. Costs one atomic read then.
  virtual std::shared_ptr<const AbortReason> abort_reason() const = 0;
  /// Called by all ranks, aborted or not: waits for all of them, then forgets the reason and every
  /// transfer that was not taken, and the world is as new.
  virtual void recover(Deadline deadline) = 0;

  // Progress: who is where, for the day on which somebody waits in vain ---------------------------

  /// From now on `tell` says how this rank gets on; other threads call it, at any time, until it is
  /// replaced. Empty: nobody tells.
  virtual void publish(std::function<RankProgress()> tell);
  /// By rank: those of this process as of now, others as they last said, which they do several
  /// times a second. Any thread may ask.
  virtual std::vector<HeardProgress> progress() const;

 protected:
  Transport() = default;
};

}  // namespace stagecraft
