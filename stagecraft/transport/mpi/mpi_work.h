#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "stagecraft/transport/wire/byte_transport.h"

namespace stagecraft::detail {

class MpiProgress;

/// A send or receive of bytes over MPI.
class MpiWork final : public Work {
 public:
  enum class Kind { kSend, kReceive };

  /// Messages from this size on progress only while MPI is polled.
  /// Above kFrameBytes (72 KiB), so that frames are never large, only tensors of their own.
  static constexpr uint64_t kLarge = 128 * 1024;
  /// How long polling without a pause pays off for this many bytes of large messages; less if ranks
  /// share cores (`has_core` is false).
  static std::chrono::nanoseconds time_to_ask(int64_t bytes, bool has_core = true);

  MpiWork(MpiProgress& progress, Kind kind, void* group, Rank other, ByteTransport::Tag tag,
          at::Tensor bytes);

  /// Sleeps.
  bool wait() override;
  /// Polls MPI for a while, so that no thread must be woken; then sleeps.
  bool wait_busily() override;
  bool is_done() const override { return (state_.load(std::memory_order_acquire) & kDone) != 0; }
  void interrupt() override;

  bool is_over() const { return (state_.load(std::memory_order_acquire) & kOver) != 0; }
  /// Ends waits with an error. MPI may still use the memory.
  void give_up();

 private:
  friend class MpiProgress;
  static constexpr uint32_t kDone = 1;
  static constexpr uint32_t kFailed = 2;
  static constexpr uint32_t kInterrupted = 4;
  static constexpr uint32_t kOver = kDone | kFailed;

  /// The result of `wait`, or nothing while it is in progress.
  std::optional<bool> look();
  void set(uint32_t bit);

  MpiProgress& progress_;
  const Kind kind_;
  void* const group_;
  const Rank other_;
  const ByteTransport::Tag tag_;
  at::Tensor bytes_;
  const uint64_t size_;
  std::atomic<uint32_t> state_{0};
  std::string problem_;             ///< set before kFailed
  std::shared_ptr<MpiWork> alive_;  ///< this work, while MPI uses the memory
};
using MpiWorkPtr = std::shared_ptr<MpiWork>;

}  // namespace stagecraft::detail
