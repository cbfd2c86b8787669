#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "stagecraft/base/index.h"

namespace stagecraft::detail {

/// A process, as others of its machine can find it.
struct ProcessName {
  std::string machine;     ///< different for every boot of every machine
  std::string namespace_;  ///< processes of another one have other numbers
  int64_t pid = 0;
  uint64_t start = 0;  ///< when it began: numbers are used again

  static ProcessName of_this();
  /// Whether that one can be watched from here.
  bool is_near(const ProcessName& other) const {
    return !machine.empty() && machine == other.machine && namespace_ == other.namespace_;
  }
};

/// Watches processes of this machine and tells when one has ended, within milliseconds and however
/// it ended. Those of other machines, and those that the system does not let it watch, are left
/// out.
class PeerProcesses {
 public:
  /// `processes[i]` is that of rank i. `on_ended` is called on a thread of its own, once for each,
  /// also for those that are gone already.
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

/// Whether it has ended. False for one that cannot be watched from here.
bool has_ended(const ProcessName& process);

}  // namespace stagecraft::detail
