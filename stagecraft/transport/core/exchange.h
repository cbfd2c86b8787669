#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "stagecraft/base/deadline.h"
#include "stagecraft/base/index.h"
#include "stagecraft/base/indexed_vector.h"
#include "stagecraft/transport/core/progress.h"
#include "stagecraft/transport/core/rendezvous.h"
#include "stagecraft/transport/core/transfer_state.h"
#include "stagecraft/transport/core/wait_queue.h"
#include "stagecraft/transport/core/world_state.h"

namespace stagecraft::detail {

struct ExchangeOptions {
  /// A send is done only when its receive is posted.
  bool zero_buffering = false;
  /// How long a wait spins before it sleeps.
  Deadline::Clock::duration spin{0};
};

/// Carries payloads between the ranks of one process: the part of a transport (transport.h
/// describes the calls) that is independent of tensors. A rank's calls come from one thread at a
/// time; abort, reason and leave may come from any thread. Payloads are moved, and never destroyed
/// under a lock.
template <typename Payload>
class Exchange {
  static_assert(std::is_nothrow_move_constructible_v<Payload> &&
                std::is_nothrow_move_assignable_v<Payload> &&
                std::is_default_constructible_v<Payload>);

 public:
  struct Arrival {
    Payload payload;
    Deadline::Clock::time_point sent;
  };

  explicit Exchange(int32_t ranks, const ExchangeOptions& options = {})
      : options_(options),
        world_(ranks),
        done_send_(std::make_shared<SendHandle>(world_.number(), nullptr)),
        mailboxes_(ranks),
        collectives_(world_, /*heeds_abort=*/true),
        recoveries_(world_, /*heeds_abort=*/false),
        progress_sources_(ranks) {}

  int32_t num_ranks() const { return world_.num_ranks(); }
  void require_rank(Rank rank, const char* where) const { world_.require_rank(rank, where); }
  const WorldState& world() const { return world_; }

  /// If this throws, the payload is still the caller's.
  PendingPtr post_send(Rank from, Rank to, const TransferId& id, Payload&& payload);
  PendingPtr post_receive(Rank to, Rank from, const TransferId& id);
  void wait_send(Rank from, const PendingPtr& send, Deadline deadline);
  Arrival wait_receive(Rank to, const PendingPtr& receive, Deadline deadline);

  /// The payloads of all ranks, by rank. `call` is the name of the collective, which must be the
  /// same on all ranks: "barrier".
  std::shared_ptr<const std::vector<Payload>> gather(Rank rank, const std::string& call,
                                                     Payload payload, Deadline deadline);

  using Payloads = std::vector<Payload>;
  /// Aborts the world. Returns the payloads that no rank can receive any more: destroy them without
  /// holding a lock.
  Payloads abort(AbortReason reason);
  std::shared_ptr<const AbortReason> reason() const { return world_.reason(); }
  void recover(Rank rank, Deadline deadline);
  /// The second half of `recover`, for ranks that coordinate elsewhere (wire/meeting_point.h).
  /// Destroy the result without holding a lock.
  struct Forgotten {
    Payloads payloads;
    std::shared_ptr<const AbortReason> reason;
  };
  Forgotten forget();
  /// Records that the rank has left. A rank that waits for it aborts the world. A rank that begins
  /// to wait later throws PeerError.
  void leave(Rank rank);

  /// The source of a rank's progress.
  ProgressSource& progress_source(Rank rank) { return progress_sources_[rank]; }
  const ProgressSource& progress_source(Rank rank) const { return progress_sources_[rank]; }

 private:
  struct Transfer final : TransferState {
    using TransferState::TransferState;
    Payload payload;
    Deadline::Clock::time_point sent;
  };
  using TransferPtr = std::shared_ptr<Transfer>;
  /// Aligned to a cache line, because each rank polls its own mailbox.
  struct alignas(64) Mailbox {
    WaitQueue waiters;
    std::unordered_map<TransferKey, TransferPtr> transfers;
  };
  struct Nothing {};

  Mailbox& mailbox(Rank rank) { return mailboxes_[rank]; }
  /// The transfer's entry in the mailbox, created if it is new.
  TransferPtr& find_or_make(Mailbox& box, Rank to, const TransferKey& key) {
    const auto known = box.transfers.find(key);
    if (known != box.transfers.end()) return known->second;
    auto made = std::make_shared<Transfer>(world_.number(), to, key);
    return box.transfers.emplace(key, std::move(made)).first->second;
  }
  /// Waits until the transfer has one of these bits; false at the deadline.
  bool wait_for(TransferState& transfer, TransferState::Bits any_of, Deadline deadline);
  /// Throws the error of a wait that failed.
  [[noreturn]] void fail_wait(Rank rank, Rank peer, bool had_left, const std::string& what);
  /// Ends all transfers of the mailbox. REQUIRES its mutex.
  static void discard(Mailbox& box, TransferState::Bits mark, Payloads& discarded);
  template <typename OnMet, typename T>
  auto meet(Rendezvous<T>& where, Rank rank, const std::string& call, T payload, Deadline deadline,
            const OnMet& on_met);

  const ExchangeOptions options_;
  WorldState world_;
  const PendingPtr done_send_;
  IndexedVector<Rank, Mailbox> mailboxes_;  ///< of the receiving rank
  Rendezvous<Payload> collectives_;
  Rendezvous<Nothing> recoveries_;
  IndexedVector<Rank, ProgressSource> progress_sources_;
};

}  // namespace stagecraft::detail

#include "stagecraft/transport/core/exchange_impl.h"  // IWYU pragma: export
