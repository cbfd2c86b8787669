#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "stagecraft/base/deadline.h"
#include "stagecraft/base/indexed_vector.h"
#include "stagecraft/transport/core/abort_reason.h"
#include "stagecraft/transport/core/work.h"
#include "stagecraft/transport/nccl/nccl_library.h"
#include "stagecraft/transport/nccl/nccl_pair_state.h"

namespace stagecraft::detail {

/// The NCCL communicators of one rank. Each directed pair of ranks that transfers values has a
/// communicator of two ranks, because NCCL has no tags and serialises the transfers of a
/// communicator. The first send of a pair creates it:
///
///   sender    open: makes an id, sends it to the receiver, waits for its own part
///   receiver  accept: begins its own part; the first receive waits for its end
///
/// NCCL's calls can wait for a peer for ever. Calls that create, abort and destroy communicators
/// run on detached threads; callers wait for them with a timeout. Several communicators may be
/// created at the same time: one after the other would deadlock, unless all ranks had one order.
class NcclPairs {
 public:
  NcclPairs(std::shared_ptr<const NcclLibrary> library, Rank rank, int32_t ranks,
            c10::Device device, std::chrono::nanoseconds connect_limit);
  /// Ends all communicators, like `close` with no time to complete.
  ~NcclPairs();
  NcclPairs(const NcclPairs&) = delete;
  NcclPairs& operator=(const NcclPairs&) = delete;

  c10::Device device() const { return device_; }
  /// `open`, `accept`, `send` and `receive` do what DeviceLink says. `send_id` passes the id to
  /// `accept` of the other rank. Returns false as soon as `is_over`.
  bool open(Rank to, uint64_t epoch, const std::function<void(const std::string& id)>& send_id,
            const std::function<bool()>& is_over);
  void accept(Rank from, uint64_t epoch, std::string_view id);
  /// Waits until the other rank has opened its pair with this one. Returns and throws as `open`.
  bool wait_accepted(Rank from, uint64_t epoch, const std::function<bool()>& is_over);
  WorkPtr send(Rank to, uint64_t epoch, const at::Tensor& bytes);
  void receive(Rank from, uint64_t epoch, const at::Tensor& bytes);
  /// A rank with a posted receive that the device has not completed. Without a value, all receives
  /// are complete, unless the communicators were aborted or `find_failure` finds a failure.
  std::optional<Rank> find_missing() const;
  /// Requests the end of that epoch's transfers: `is_cancelled` is true from now on, until the next
  /// epoch begins.
  void cancel(uint64_t epoch);
  bool is_cancelled() const { return cancelled_ > epoch_; }
  /// The epoch of the communicators.
  uint64_t epoch() const { return epoch_; }

  /// Ends all communicators. Those that are opened from now on belong to this epoch.
  void begin_epoch(uint64_t epoch);
  /// Ends all transfers, complete or not. Pairs may be opened again unless the epoch is cancelled.
  void abort();
  /// Like `abort`, but transfers in progress get the time `limit` to complete.
  void close(std::chrono::nanoseconds limit);
  /// The first pair that could not connect, or whose communicator reports an error: the rank that
  /// is to blame, and NCCL's message. Not while communicators are ended.
  std::optional<AbortReason> find_failure() const;
  /// The state of the pair with that rank in which this rank sends, or receives.
  NcclPairState::State state(Rank other, bool is_sender) const;

 private:
  struct Pair;
  using PairPtr = std::shared_ptr<Pair>;
  struct Connecting;

  /// Waits until the pair is open or `is_over`.
  bool wait_open(Pair& pair, uint64_t epoch, const std::function<bool()>& is_over) const;
  /// Begins to create the communicator. REQUIRES the pair's mutex, and kIdle.
  void start(const PairPtr& pair, const NcclLibrary::UniqueId& id);
  static void run_connecting(Connecting& job);
  static void connect_pair(Connecting& job);
  bool is_current(uint64_t epoch) const { return epoch == epoch_ && !is_cancelled(); }
  /// Takes all communicators out of use and passes each to a function of NCCL on its own detached
  /// thread. All at once: ending one may wait for the whole device, and so for the others.
  void end_all(NcclLibrary::Result (*finish)(NcclLibrary::Comm), std::chrono::nanoseconds limit);
  Pair& out(Rank to) const { return *out_[to]; }
  Pair& in(Rank from) const { return *in_[from]; }

  const std::shared_ptr<const NcclLibrary> library_;
  const Rank rank_;
  const c10::Device device_;
  const std::chrono::nanoseconds connect_limit_;
  std::atomic<uint64_t> epoch_{0};      ///< of the communicators
  std::atomic<uint64_t> cancelled_{0};  ///< all epochs below it are cancelled
  IndexedVector<Rank, PairPtr> out_;    ///< by receiving rank; null for this one
  IndexedVector<Rank, PairPtr> in_;     ///< by sending rank
};

}  // namespace stagecraft::detail
