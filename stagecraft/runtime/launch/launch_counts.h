#pragma once

#include <cstdint>
#include <string>

namespace stagecraft {

/// How a Pipeline or Runner executed its steps and evals (PipelineOptions::graphs).
struct LaunchCounts {
  int64_t run = 0;       ///< operator by operator, on the ranks' threads
  int64_t captured = 0;  ///< as graphs, each then replayed once for its step
  int64_t replayed = 0;  ///< as one launch, including the first replay after a capture
  int64_t graphs = 0;    ///< that exist now
  /// Bytes that torch's allocator had reserved on the device at the peak of a step, including all
  /// other memory of the process, without memory cached before; 0: not known. A graph keeps its
  /// memory between steps.
  int64_t peak_run = 0;       ///< of the last step that was run before a capture
  int64_t peak_replayed = 0;  ///< of the first replay after it, with the graphs that existed then
  /// Why the last step that was not replayed was run; empty if too few steps with its shapes were
  /// run before.
  std::string reason = {};
};

}  // namespace stagecraft
