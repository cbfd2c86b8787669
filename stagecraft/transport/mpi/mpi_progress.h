#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/base/deadline.h"
#include "stagecraft/transport/mpi/mpi_library.h"
#include "stagecraft/transport/mpi/mpi_plugin.h"
#include "stagecraft/transport/mpi/mpi_work.h"
#include "stagecraft/transport/wire/byte_transport.h"
#include "stagecraft/transport/wire/peer_processes.h"

namespace stagecraft::detail {

/// MPI, in this process: started once, and there until the process ends. All calls to it go through
/// here, from one thread at a time:
///
///   its own thread starts and ends it and makes groups, which may take long, and looks whether
///   something has happened. It never looks without a pause but while large messages are under way,
///   since it would take a core from whoever computes; the longer nothing has happened, the longer
///   the pause, up to kLongestPause.
///   whoever sends or receives posts it at once, unless another thread is just in MPI, which then
///   does it.
///   whoever has nothing to do but wait looks itself (MpiWork::wait_busily): a message that had to
///   wake a thread which wakes another one would take ten times as long.
class MpiProgress {
 public:
  static constexpr std::chrono::microseconds kShortestPause{30};
  static constexpr std::chrono::microseconds kLongestPause{1000};

  /// Starts MPI, if it has not been. ArgumentError without a launcher, without a plug-in and for an
  /// MPI that cannot be used; TimeoutError if it did not start in time.
  static MpiProgress& get(Deadline deadline);

  const MpiPlugin& plugin() const { return *plugin_; }
  MpiKind kind() const { return kind_; }
  const MpiFacts& facts() const { return facts_; }

  MpiWorkPtr send(void* group, Rank to, ByteTransport::Tag tag, const at::Tensor& bytes);
  MpiWorkPtr receive(void* group, Rank from, ByteTransport::Tag tag, const at::Tensor& bytes);
  /// Posts what is to be posted and looks once. False when another thread is at it.
  bool advance();

  /// Calls it on the own thread. False if it has not come to its end by the deadline; then it may
  /// still do so, and until it has nothing else can be done (is_stuck).
  /// `is_over` is asked now and then whether waiting is pointless.
  bool run(
      std::function<void()> call, Deadline deadline,
      const std::function<bool()>& is_over = [] { return false; });
  bool is_stuck() const { return is_stuck_; }
  /// Calls it here, when no other thread is in MPI. False, without a call, if one is stuck in it.
  bool run_here(const std::function<void()>& call);

  /// For each that was made; it is to be closed.
  void open_group() { ++open_groups_; }
  /// Takes back what is posted for a group, and frees it if nothing of it is left under way by the
  /// deadline. With `is_lost`, a rank of it is: then nothing is waited for.
  void close_group(void* group, bool is_lost, Deadline deadline);
  /// The works of a group with that rank are given up.
  void give_up(void* group, Rank other);

  /// From now on MPI_Finalize would wait for a rank that does not come.
  void set_unfinishable() { cannot_finish_ = true; }
  /// Or only some while: a world has failed, and ranks that live may hang all the same.
  void set_failed() { has_failed_ = true; }
  /// Whose end makes waiting in MPI_Finalize pointless.
  void set_peers(std::vector<ProcessName> peers);
  /// All ranks of the job end MPI through this library, so they can meet before.
  void set_meeting() { can_meet_ = true; }
  /// How many ranks of the job share this machine's cores, as far as is known.
  void set_local_ranks(int32_t ranks);
  bool has_a_core_each() const { return has_a_core_each_; }

 private:
  friend class MpiWork;
  using Clock = Deadline::Clock;

  MpiProgress(MpiKind kind, const MpiPlugin& plugin);
  static void on_exit();

  void run_thread();
  void pause();
  void start();
  /// At the process's end.
  void finish();
  bool wait_for_finish();
  MpiWorkPtr post(MpiWorkPtr work);
  /// With mpi_mutex_ held.
  void post_queued();
  bool poll();
  void post_one(const MpiWorkPtr& work);
  void touch();
  /// A work of that size is waited for, or not any more.
  void count_large(int64_t bytes);
  /// Ends a long pause of the thread.
  void wake(bool is_urgent);

  const MpiKind kind_;
  const MpiPlugin* const plugin_;
  MpiFacts facts_;
  std::string problem_;

  std::timed_mutex mpi_mutex_;  ///< held by whoever is in MPI
  std::atomic<bool> is_stuck_{false};
  std::atomic<int32_t> wanted_{0};  ///< threads that want it and do not come back by themselves
  bool is_closed_ = false;          ///< it cannot be called, or not any more
  std::unordered_set<MpiWork*> posted_;

  std::mutex queue_mutex_;
  std::vector<MpiWorkPtr> queue_;
  std::atomic<bool> has_queued_{false};

  std::mutex thread_mutex_;
  std::condition_variable thread_changed_;
  std::vector<std::function<void()>> calls_;
  std::atomic<bool> is_paused_{false};
  bool is_wanted_ = false;
  bool is_over_ = false;
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
