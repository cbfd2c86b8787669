#pragma once

#include <memory>
#include <sys/types.h>

#include "benchmarks/ping_pong.h"

namespace stagecraft::bench {

/// This process and a child of it, which play ping-pong over gloo when asked to.
class GlooPair {
 public:
  /// Forks: to be made before the process has threads.
  GlooPair();
  ~GlooPair();
  GlooPair(const GlooPair&) = delete;
  GlooPair& operator=(const GlooPair&) = delete;

  /// How many seconds it took.
  double run(const Task& task);

 private:
  class End;
  pid_t child_ = -1;
  int to_child_ = -1;
  std::unique_ptr<End> end_;
};

}  // namespace stagecraft::bench
