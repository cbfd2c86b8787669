#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "stagecraft/base/deadline.h"
#include "stagecraft/base/index.h"
#include "stagecraft/base/indexed_vector.h"
#include "stagecraft/transport/core/abort_reason.h"

namespace stagecraft::detail {

/// The ranks of a world, which of them have left, and whether and why the world was aborted.
/// Thread-safe.
class WorldState {
 public:
  /// ArgumentError unless ranks >= 1.
  explicit WorldState(int32_t ranks);

  /// Different for every world of the process.
  uint64_t number() const { return number_; }
  int32_t num_ranks() const { return left_.size(); }
  /// ArgumentError unless the rank exists; `where` begins the message.
  void require_rank(Rank rank, const char* where) const;

  bool is_aborted() const { return aborted_.load(std::memory_order_acquire); }
  /// Null while the world is not aborted.
  std::shared_ptr<const AbortReason> reason() const;
  /// PeerError with the reason, if there is one.
  void throw_if_aborted() const;
  /// Aborts the world. Only the first reason counts: `tell_all` is called for it, before the world
  /// can recover.
  void abort(AbortReason reason, const std::function<void()>& tell_all);
  /// Forgets the reason and returns it. `clear` is called before the world can be aborted again.
  std::shared_ptr<const AbortReason> recover(const std::function<void()>& clear);

  bool has_left(Rank rank) const { return left_[rank].load(); }
  bool anyone_left() const { return anyone_left_.load(); }
  std::vector<Rank> ranks_that_left() const;
  void leave(Rank rank);

 private:
  uint64_t number_;
  std::atomic<bool> aborted_{false};
  std::mutex changing_;  ///< held by abort and recover, across their callbacks
  mutable std::mutex reason_mutex_;
  std::shared_ptr<const AbortReason> reason_;
  std::atomic<bool> anyone_left_{false};
  IndexedVector<Rank, std::atomic<bool>> left_;
};

/// "rank 1", "ranks 1 and 2", "ranks 0, 2 and 3".
std::string name_ranks(const std::vector<Rank>& ranks);
/// "30.0 s", "20 ms".
std::string describe_wait(Deadline::Clock::duration waited);

}  // namespace stagecraft::detail
