#pragma once

#include <sys/types.h>
#include <vector>

namespace stagecraft::bench {

/// Keeps every processor busy that this process may use: one child process on each computes without
/// a pause. The children end with this object, and with this process.
class BusyCores {
 public:
  /// Throws Error when a child cannot be started. REQUIRES that no thread of this process holds a
  /// lock that the child would need (the child allocates nothing).
  BusyCores();
  ~BusyCores();
  BusyCores(const BusyCores&) = delete;
  BusyCores& operator=(const BusyCores&) = delete;

 private:
  std::vector<pid_t> children_;
};

}  // namespace stagecraft::bench
