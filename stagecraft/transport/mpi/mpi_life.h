#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "stagecraft/transport/mpi/mpi_plugin.h"

namespace stagecraft::detail {

/// The life of MPI in this process.
///
///               start                 finish, if all ranks can meet            all have come
///   kStarting --------> kRunning --------------------------------> kMeeting ---------------+
///       |                 |  |       finish, otherwise                 |                   v
///       |                 |  +---------------------------------------- | ----------> kFinalizing
///       v                 v  leave                                     v MPI fails         |
///   kUnusable           kLeft                                      kStranded            kEnded
///
/// The states of the last row are final. One thread at a time calls `start`, `finish` and `leave`;
/// the rest is thread-safe.
class MpiLife {
 public:
  enum class State : uint8_t {
    kStarting,
    kRunning,
    kUnusable,    ///< MPI cannot be used: see `problem` and `facts`
    kMeeting,     ///< waits for all ranks of the job
    kFinalizing,  ///< is inside MPI_Finalize
    kEnded,
    kStranded,  ///< MPI reported an error while it waited for all ranks
    kLeft,      ///< MPI is not finalized by this library
  };

  explicit MpiLife(const MpiPlugin& plugin) : plugin_(plugin) {}

  /// Initialises MPI.
  void start();
  /// Finalizes MPI; returns in kEnded or kStranded. `can_meet`: all ranks of the job do the same.
  /// Can block for ever. REQUIRES kRunning.
  void finish(bool can_meet);
  /// Ends the use of MPI without finalizing it. REQUIRES kRunning.
  void leave() { move_to(State::kLeft); }

  State state() const { return state_.load(std::memory_order_acquire); }
  /// Whether MPI may be called.
  bool is_running() const { return state() == State::kRunning; }
  /// Whether MPI will not be called again.
  bool is_over() const { return state() == State::kEnded || state() == State::kLeft; }

  const MpiPlugin& plugin() const { return plugin_; }
  /// Both are valid after `start`. The problem is empty if MPI has started.
  const MpiFacts& facts() const { return facts_; }
  const std::string& problem() const { return problem_; }

 private:
  void move_to(State next);

  const MpiPlugin& plugin_;
  MpiFacts facts_;
  std::string problem_;
  std::atomic<State> state_{State::kStarting};
};

}  // namespace stagecraft::detail
