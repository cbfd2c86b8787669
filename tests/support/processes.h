#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace stagecraft {

/// How a process of a test ended.
struct ProcessEnd {
  enum class Kind { kReturned, kThrew, kFailed, kKilled, kHung };

  Kind kind = Kind::kReturned;
  std::string type;     ///< of what it threw, if it threw: "PeerError"
  std::string message;  ///< of what it threw; of one that was killed, the signal
  double seconds = 0;   ///< from the start until its body was over
};

/// Runs `body(i)` for i = 0, 1, ... in a process each, forked from this one, which must have no
/// threads. A body judges what it sees with EXPECT_...; what fails there is printed, and kFailed is
/// the end of that process. No process outlives the object, and none runs longer than `limit`.
class Processes {
 public:
  Processes(int32_t count, const std::function<void(int32_t)>& body,
            std::chrono::seconds limit = std::chrono::seconds(60));
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  pid_t pid(int32_t i) const { return children_[static_cast<std::size_t>(i)].pid; }
  /// Sends a signal.
  void signal(int32_t i, int number) const;
  /// Until process i has called `tell_parent` once more.
  void wait_for_word(int32_t i);
  /// Until all have ended, but those in `except`, which are killed then.
  std::vector<ProcessEnd> wait(const std::vector<int32_t>& except = {});

  /// In a process: wakes wait_for_word in the parent.
  static void tell_parent();

 private:
  struct Child {
    pid_t pid = -1;
    int words = -1;   ///< where its words come from
    int result = -1;  ///< where its end comes from
  };

  ProcessEnd wait_one(Child& child);
  void end_one(Child& child, bool has_ended = false);

  std::chrono::steady_clock::time_point deadline_;
  std::vector<Child> children_;
  int last_signal_ = 0;
};

/// "PeerError": what ProcessEnd::type says of it.
std::string type_of(const std::exception& error);

/// Throws what a process threw, as the type that it was if that is one of Stagecraft's or of the
/// standard library's common ones.
[[noreturn]] void rethrow(const ProcessEnd& end);

/// Expects that no process died, hung or failed by itself, and rethrows what the first that failed
/// threw: others threw because of it.
void judge_ends(const std::vector<ProcessEnd>& ends);

}  // namespace stagecraft
