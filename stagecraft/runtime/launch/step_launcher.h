#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stagecraft/runtime/launch/device_probe.h"
#include "stagecraft/runtime/launch/graph_cache.h"
#include "stagecraft/runtime/launch/graph_device.h"
#include "stagecraft/runtime/launch/launch_counts.h"
#include "stagecraft/runtime/launch/step_key.h"
#include "stagecraft/runtime/step.h"
#include "stagecraft/runtime/step_driver.h"

namespace stagecraft::detail {

/// Replays the steps of a Pipeline whose stages are all on one device. The steps with one StepKey
/// are, in this order:
///
///   run         by the caller, on the ranks' threads
///   rehearsed   all ranks on this thread, on the stream of captures, so that everything that is
///               created once (handles of libraries, workspaces) exists
///   captured    all ranks on this thread, as one graph, which is replayed at once
///   replayed    from then on
///
/// If a capture fails, the step and all later steps with its key are run.
class StepLauncher {
 public:
  /// The parts of the pipeline that the launcher uses.
  struct Host {
    PipelineCore& core;
    std::span<const std::unique_ptr<StepDriver>> ranks;
    /// The results of the executors.
    std::function<StepResult(const StepOptions& options)> collect;
    /// After a failure on a rank: brings the executors and their world back into use.
    std::function<void()> recover;
  };
  enum class Outcome : uint8_t {
    kNotLaunched,  ///< the caller runs the step
    kExecuted,     ///< the executors have the results
    kReplayed,     ///< `result` has the results
  };

  StepLauncher(Host host, std::unique_ptr<GraphDevice> device);
  ~StepLauncher();

  /// Launches a step. After a failed capture the plan has a new step id. An exception is a failure
  /// of the step, as of Executor::run. With GraphMode::kOn also Error for a step that cannot be
  /// captured.
  Outcome launch(StepPlan& plan, StepResult& result);

  /// After kExecuted, when the results are collected: notes the peak of the step.
  void note_collected();

  const LaunchCounts& counts() const { return counts_; }
  /// Whether the executors have a recording of the step that was replayed last.
  bool has_recording() const { return has_recording_; }

 private:
  struct Captured;
  struct Seen {
    int32_t runs = 0;
    bool is_refused = false;
    std::string reason = {};
  };

  Outcome launch_step(StepPlan& plan, StepResult& result);
  Outcome decline(const std::string& reason);
  std::shared_ptr<DeviceMarks> make_marks(const Schedule& schedule);
  void execute_here(const StepPlan& plan);
  void rehearse(const StepPlan& plan);
  std::unique_ptr<Captured> capture(const StepPlan& plan);
  void record(const StepPlan& plan, Captured& step);
  StepResult replay(Captured& step, const StepPlan& plan);
  void release_casts();

  Host host_;
  std::unique_ptr<GraphDevice> device_;
  std::unique_ptr<DeviceProbe> probe_;  // null without statistics of memory
  std::vector<const Stage*> stages_;
  GraphCache<StepKey, Seen> seen_;
  GraphCache<StepKey, std::unique_ptr<Captured>> graphs_;
  LaunchCounts counts_;
  bool has_recording_ = false;
};

/// Why a step must be run instead of replayed, for reasons other than its batch; empty if there is
/// no reason.
std::string find_obstacle(const StepPlan& plan, const Callbacks& callbacks,
                          const std::vector<const Stage*>& stages);

/// A launcher for a pipeline, or null if its options or its devices do not allow graphs; with
/// GraphMode::kOn that is an ArgumentError.
std::unique_ptr<StepLauncher> make_launcher(StepLauncher::Host host);

}  // namespace stagecraft::detail
