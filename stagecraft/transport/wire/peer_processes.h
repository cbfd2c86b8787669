#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "stagecraft/base/index.h"

namespace stagecraft::detail {

/// Identifies a process among those of its machine.
struct ProcessName {
  std::string machine;     ///< different for every boot of every machine
  std::string namespace_;  ///< the PID namespace, in which `pid` is valid
  int64_t pid = 0;
  uint64_t start = 0;  ///< its start time, because PIDs are reused

  static ProcessName of_this();
  /// Whether this process can watch the other one.
  bool is_near(const ProcessName& other) const {
    return !machine.empty() && machine == other.machine && namespace_ == other.namespace_;
  }
};

/// Watches processes of this machine and reports within milliseconds that one has ended, for
/// whatever reason. Processes of other machines, and processes that the system does not permit to
/// watch, are skipped.
class PeerProcesses {
 public:
  /// `processes[i]` is the process of rank i. `on_ended` is called on a separate thread, once for
  /// each process, even if it had ended before.
  PeerProcesses(const std::vector<ProcessName>& processes, Rank self,
                std::function<void(Rank)> on_ended);
  ~PeerProcesses();
  PeerProcesses(const PeerProcesses&) = delete;
  PeerProcesses& operator=(const PeerProcesses&) = delete;

 private:
  struct Watched {
    Rank rank;
    int fd = -1;  ///< -1: it has ended
  };

  void run();

  const std::function<void(Rank)> on_ended_;
  std::vector<Watched> watched_;
  int stop_ = -1;
  std::thread thread_;
};

/// Whether the process has ended. False if it cannot be watched from here.
bool has_ended(const ProcessName& process);

}  // namespace stagecraft::detail
