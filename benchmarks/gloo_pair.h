#pragma once

#include <memory>
#include <sys/types.h>

#include "benchmarks/ping_pong.h"

namespace stagecraft::bench {

/// This process and a child process, which run a ping-pong over gloo on request.
class GlooPair {
 public:
  /// Forks, so it must be created before the process has threads.
  GlooPair();
  ~GlooPair();
  GlooPair(const GlooPair&) = delete;
  GlooPair& operator=(const GlooPair&) = delete;

  /// Runs a ping-pong and returns its seconds.
  double run(const Task& task);

 private:
  class End;
  pid_t child_ = -1;
  int to_child_ = -1;
  std::unique_ptr<End> end_;
};

}  // namespace stagecraft::bench
