#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stagecraft/base/deadline.h"
#include "stagecraft/transport/core/abort_reason.h"
#include "stagecraft/transport/nccl/nccl_library.h"
#include "stagecraft/transport/wire/device_link.h"

namespace stagecraft::detail {

/// A device link over NCCL: a communicator of two ranks for each directed pair, since NCCL has no
/// tags and what is sent in one communicator goes one after another.
///
/// NCCL's own calls can wait for the other rank without end. Those that make, abort and destroy
/// communicators are made by threads that nobody waits for longer than he wants to.
class NcclLink final : public DeviceLink {
 public:
  NcclLink(std::shared_ptr<const NcclLibrary> library, Rank rank, int32_t ranks,
           c10::Device device);
  /// As close(zero) does.
  ~NcclLink() override;

  c10::Device device() const override { return device_; }
  Engine::WorkPtr send(Rank to, uint64_t epoch, const at::Tensor& bytes) override;
  void receive(Rank from, uint64_t epoch, const at::Tensor& bytes) override;
  /// A rank of whose values one is still on its way on the device, or was lost there; none: all
  /// that were received have come, unless the link was aborted or `find_failure` knows of one.
  std::optional<Rank> find_missing() const;
  /// `is_ended` says so from now on, to whoever is to abort.
  void end(uint64_t epoch) override;
  bool is_ended() const { return ended_ > epoch_; }
  uint64_t epoch() const { return epoch_; }

  /// New ones, for what this rank will send to each: to be handed to all ranks. ArgumentError with
  /// NCCL's words.
  std::string make_ids() const;
  /// Makes all communicators anew and tries each, in the order of the pairs, which is that of all
  /// ranks: (0, 1), (0, 2), ..., (1, 0), ... Of two ranks that both wait, the one with the earlier
  /// pair is being waited for by nobody who waits. `ids` are those of every rank.
  ///
  /// TimeoutError at the deadline and ArgumentError with NCCL's words; returns without
  /// communicators as soon as `is_over`.
  void connect(const std::vector<std::string>& ids, uint64_t epoch, Deadline deadline,
               const std::function<bool()>& is_over);
  /// What is under way ends, sent or not, and nothing is sent any more until the next connect.
  void abort();
  /// The same, but what is under way comes to its end if that takes no longer than this.
  void close(std::chrono::nanoseconds limit);
  /// The rank with which something has gone wrong since `connect`, if any, and NCCL's words. Not
  /// while communicators are made or ended.
  std::optional<AbortReason> find_failure() const;

 private:
  struct Pair;
  using PairPtr = std::shared_ptr<Pair>;
  struct Connecting;

  static void run_connecting(Connecting& job);
  static void connect_pair(Connecting& job, const PairPtr& pair, const NcclLibrary::UniqueId& id);
  /// Takes the communicators away and hands them, on threads of their own, to a function of NCCL's:
  /// to all at once, since ending one may wait for the whole device, and so for the others.
  void end_all(NcclLibrary::Result (*finish)(NcclLibrary::Comm), std::chrono::nanoseconds limit);
  Pair& out(Rank to) const { return *out_[static_cast<std::size_t>(to.value())]; }
  Pair& in(Rank from) const { return *in_[static_cast<std::size_t>(from.value())]; }

  const std::shared_ptr<const NcclLibrary> library_;
  const Rank rank_;
  const c10::Device device_;
  std::atomic<uint64_t> epoch_{0};  ///< of the communicators
  std::atomic<uint64_t> ended_{0};  ///< all epochs below it are
  std::vector<PairPtr> out_;        ///< by receiving rank; null for this one
  std::vector<PairPtr> in_;         ///< by sending rank
};

}  // namespace stagecraft::detail
