#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "stagecraft/runtime/executor.h"
#include "stagecraft/runtime/launch/captured_seeds.h"
#include "stagecraft/runtime/launch/graph_cache.h"
#include "stagecraft/runtime/launch/graph_device.h"
#include "stagecraft/runtime/launch/launch_counts.h"
#include "stagecraft/runtime/launch/step_key.h"
#include "stagecraft/runtime/step_driver.h"

namespace stagecraft::detail {

/// Replays the compute actions of one rank whose transfers go to other processes. Each F, B, I and
/// W (an overlap as a whole) is a graph; transfers stay between them:
///
///   receive   into the memory that the graph reads
///   launch    the graph
///   send      a copy of what the graph wrote
///
/// The steps with one StepKey are first run, then run on the stream of captures, then captured (and
/// each graph replayed at once), then replayed. If an action cannot be captured, the rest of the
/// step and all later steps with its key are run.
class ActionLauncher {
 public:
  /// `core` and `rank` must outlive the launcher.
  ActionLauncher(PipelineCore& core, StepDriver& rank, std::unique_ptr<GraphDevice> device);
  ~ActionLauncher();

  /// Executes the step. Returns false, without executing it, if the caller must run it. `shapes` is
  /// the same number for steps whose batches have the same shapes and weights on all ranks. Throws
  /// as Executor::run does.
  bool launch(const StepPlan& plan, uint64_t shapes);

  const LaunchCounts& counts() const { return counts_; }

 private:
  struct Captured;
  struct CapturedSlot;
  class NotCaptured;
  struct Seen {
    int32_t runs = 0;
    std::string reason = {};  // why it is refused
  };

  bool decline(const std::string& reason);
  void rehearse(const StepPlan& plan);
  std::unique_ptr<Captured> capture(const StepPlan& plan, Seen& seen);
  void capture_slot(const StepPlan& plan, std::size_t offset, Captured& step, Seen& seen);
  /// NotCaptured, with the reason, if `work` fails.
  std::unique_ptr<DeviceGraph> capture_work(Action action, CapturedSeeds& seeds,
                                            const std::function<void()>& work);
  void rehearse_parts(const StepPlan& plan, const CapturedSlot& slot, Captured& step, Seen& seen);
  void replay(Captured& step, const StepPlan& plan);
  void replay_slot(CapturedSlot& slot, const StepPlan& plan);
  Executor& executor() { return rank_.executor(); }
  ActionRunner& actions() { return executor().actions(); }

  PipelineCore& core_;
  StepDriver& rank_;
  std::unique_ptr<GraphDevice> device_;
  std::vector<const Stage*> stages_;
  GraphCache<StepKey, Seen> seen_;
  GraphCache<StepKey, std::unique_ptr<Captured>> graphs_;
  LaunchCounts counts_;
};

/// Null if the options or the devices do not allow graphs; with GraphMode::kOn that is an
/// ArgumentError. `transport` is that of the rank.
std::unique_ptr<ActionLauncher> make_action_launcher(PipelineCore& core, StepDriver& rank,
                                                     const Transport& transport);

}  // namespace stagecraft::detail
