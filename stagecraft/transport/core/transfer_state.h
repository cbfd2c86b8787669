#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "stagecraft/base/index.h"
#include "stagecraft/transport/core/pending.h"
#include "stagecraft/transport/core/transfer_id.h"

namespace stagecraft::detail {

/// The key of a transfer in the mailbox of the receiving rank.
struct TransferKey {
  Rank from;
  TransferId id;

  friend bool operator==(const TransferKey&, const TransferKey&) = default;
};

/// The state of a transfer. Sender and receiver share it, and either may come first:
///
///             post_receive                         wait_receive
///   (nothing) ------------> kPosted ---\           ------------> kTaken: out of the mailbox
///             post_send                 +--> both
///             ------------> kSent   ---/
///
/// From every state except kTaken, one of the last three bits ends the transfer. Bits are set under
/// the mutex of the mailbox and read without it.
class TransferState : public Pending {
 public:
  using Bits = uint8_t;
  static constexpr Bits kSent = 1;
  static constexpr Bits kPosted = 2;
  static constexpr Bits kTaken = 4;
  static constexpr Bits kAborted = 8;
  static constexpr Bits kLeft = 16;       ///< the peer has left
  static constexpr Bits kForgotten = 32;  ///< the world recovered
  static constexpr Bits kEnded = kTaken | kAborted | kLeft | kForgotten;

  TransferState(uint64_t world, Rank to, const TransferKey& key)
      : world_(world), to_(to), key_(key) {}

  uint64_t world() const { return world_; }
  Rank to() const { return to_; }
  const TransferKey& key() const { return key_; }

  Bits bits() const { return bits_.load(std::memory_order_acquire); }
  bool has(Bits any_of) const { return (bits() & any_of) != 0; }
  void set(Bits bits) { bits_.fetch_or(bits, std::memory_order_release); }

  /// Whether the receive is done.
  bool is_done() const override { return has(kSent | kEnded); }

 private:
  std::atomic<Bits> bits_{0};
  uint64_t world_;
  Rank to_;
  TransferKey key_;
};

/// The sender's handle of a send.
class SendHandle final : public Pending {
 public:
  /// `transfer` is null if the send is done when it is posted.
  explicit SendHandle(uint64_t world, std::shared_ptr<TransferState> transfer)
      : world_(world), transfer_(std::move(transfer)) {}

  uint64_t world() const { return world_; }
  const std::shared_ptr<TransferState>& transfer() const { return transfer_; }

  bool is_done() const override {
    return !transfer_ || transfer_->has(TransferState::kPosted | TransferState::kEnded);
  }

 private:
  uint64_t world_;
  std::shared_ptr<TransferState> transfer_;
};

}  // namespace stagecraft::detail

template <>
struct std::hash<stagecraft::detail::TransferKey> {
  std::size_t operator()(const stagecraft::detail::TransferKey& key) const noexcept {
    return std::hash<stagecraft::TransferId>{}(key.id) ^
           (key.from.position() * 0x9E3779B97F4A7C15U);
  }
};
