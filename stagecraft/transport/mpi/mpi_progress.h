#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/base/deadline.h"
#include "stagecraft/transport/mpi/mpi_library.h"
#include "stagecraft/transport/mpi/mpi_life.h"
#include "stagecraft/transport/mpi/mpi_plugin.h"
#include "stagecraft/transport/mpi/mpi_work.h"
#include "stagecraft/transport/mpi/pause_state.h"
#include "stagecraft/transport/wire/byte_transport.h"
#include "stagecraft/transport/wire/peer_processes.h"

namespace stagecraft::detail {

/// MPI in this process: initialised once, and finalized when the process ends. All calls of MPI go
/// through this class, from one thread at a time:
///
/// - The progress thread initialises and finalizes MPI, creates communicators, which may take long,
/// and polls. It pauses between polls, so as not to take a core from a thread that computes; only
/// while large messages are in progress it does not. The longer nothing has happened, the longer
/// the pause, up to kLongestPause.
/// - A thread that sends or receives posts the request at once. If a different thread is inside
/// MPI, that thread posts it.
/// - A thread that has nothing to do but wait polls itself (MpiWork::wait_busily). Waking the
/// progress thread, which then wakes the waiting thread, would take ten times as long.
class MpiProgress {
 public:
  /// With kPauseShare = 16 the pause is the shortest until 0.5 ms after the last event, and the
  /// longest from 16 ms on. The longest bounds the delay of a message after a long silence.
  static constexpr std::chrono::microseconds kShortestPause{30};
  static constexpr std::chrono::microseconds kLongestPause{1000};

  /// Initialises MPI unless that is done. ArgumentError without a launcher, without a plug-in, and
  /// for an MPI that cannot be used; TimeoutError if it did not start in time.
  static MpiProgress& get(Deadline deadline);

  const MpiPlugin& plugin() const { return life_.plugin(); }
  MpiKind kind() const { return kind_; }
  const MpiFacts& facts() const { return life_.facts(); }

  MpiWorkPtr send(void* group, Rank to, ByteTransport::Tag tag, const at::Tensor& bytes);
  MpiWorkPtr receive(void* group, Rank from, ByteTransport::Tag tag, const at::Tensor& bytes);
  /// Posts queued requests and polls once. False if a different thread is inside MPI.
  bool advance();

  /// Runs `call` on the progress thread. False if it has not returned by the deadline, or `is_over`
  /// (asked from time to time). Then it may still return; until it does, MPI cannot be called
  /// (is_stuck).
  bool run(
      std::function<void()> call, Deadline deadline,
      const std::function<bool()>& is_over = [] { return false; });
  bool is_stuck() const { return late_calls_ > 0; }
  /// Runs `call` on this thread when no other thread is inside MPI. False, without the call, if a
  /// thread is stuck there.
  bool run_here(const std::function<void()>& call);

  /// Counts a communicator. Each must be closed.
  void open_group() { ++open_groups_; }
  /// Cancels the receives of a communicator, and frees it if all its transfers have ended by the
  /// deadline. With `is_lost` (a rank was lost) it does not wait.
  void close_group(void* group, bool is_lost, Deadline deadline);
  /// Gives up all transfers of a communicator with that rank.
  void give_up(void* group, Rank other);

  /// From now on MPI_Finalize must not be called: it would wait for a rank that is lost.
  void set_unfinishable() { cannot_finish_ = true; }
  /// Finalize with a timeout: a world has failed, and surviving ranks may still hang.
  void set_failed() { has_failed_ = true; }
  /// The processes of the job. If one has ended, waiting in MPI_Finalize is pointless.
  void set_peers(std::vector<ProcessName> peers);
  /// All ranks of the job finalize MPI through this library, so they can run a barrier before.
  void set_meeting() { can_meet_ = true; }
  /// The number of ranks of the job on this machine, as far as known.
  void set_local_ranks(int32_t ranks);
  bool has_a_core_each() const { return has_a_core_each_; }

 private:
  friend class MpiWork;
  using Clock = Deadline::Clock;

  MpiProgress(MpiKind kind, const MpiPlugin& plugin);
  static void on_exit();

  void run_thread();
  void pause();
  /// Called when the process ends.
  void finish();
  bool wait_for_finish();
  MpiWorkPtr post(MpiWorkPtr work);
  /// REQUIRES mpi_mutex_.
  void post_queued();
  bool poll();
  void post_one(const MpiWorkPtr& work);
  void touch();
  /// Adds the size of a large transfer in progress; negative when it ends.
  void count_large(int64_t bytes);
  /// Ends a long pause of the progress thread.
  void wake(bool is_urgent);

  const MpiKind kind_;
  MpiLife life_;  ///< changed with mpi_mutex_ held

  std::timed_mutex mpi_mutex_;          ///< held by the thread that is inside MPI
  std::atomic<int32_t> late_calls_{0};  ///< calls of `run` that did not return in time
  std::atomic<int32_t> wanted_{0};      ///< threads that wait for mpi_mutex_
  std::unordered_set<MpiWork*> posted_;

  std::mutex queue_mutex_;
  std::vector<MpiWorkPtr> queue_;
  std::atomic<bool> has_queued_{false};

  std::mutex thread_mutex_;
  std::condition_variable thread_changed_;
  std::vector<std::function<void()>> calls_;
  PauseState pause_;  ///< changed with thread_mutex_ held
  std::atomic<int64_t> last_activity_{0};
  std::atomic<int64_t> large_bytes_{0};
  std::atomic<int32_t> busy_waiters_{0};
  std::atomic<int64_t> last_busy_{0};

  std::atomic<bool> cannot_finish_{false};
  std::atomic<bool> has_failed_{false};
  std::atomic<bool> can_meet_{false};
  std::atomic<int32_t> open_groups_{0};
  std::atomic<bool> has_a_core_each_{false};
  std::mutex peers_mutex_;
  std::vector<ProcessName> peers_;
};

}  // namespace stagecraft::detail
