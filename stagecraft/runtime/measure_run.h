#pragma once

#include <vector>

#include "stagecraft/partition/pipe.h"
#include "stagecraft/plan/correct_layers.h"
#include "stagecraft/runtime/loss.h"
#include "stagecraft/runtime/measure_layers.h"
#include "stagecraft/runtime/step.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// The measured times and memory of a schedule.
struct MeasuredRun {
  std::vector<MeasuredStage> stages;  ///< milliseconds and bytes, of one microbatch
  double step = 0;                    ///< milliseconds; the median of the steps
  /// By rank, bytes: parameters, gradients, AdamW's state, and the most that a step holds beside
  /// them.
  std::vector<double> peaks = {};
};

/// Runs a model as a plan says, and measures its stages as they run: with the other ranks, and in
/// the order of the schedule. A time is the mean over the microbatches of medians over the steps,
/// and includes the share of what the rank does between its actions.
///
/// `recompute`: by stage. `transport`: that of this rank. All ranks of its world make the call, and
/// get the same result. Null: ranks are threads of this process. Changes gradients and buffers of
/// the pipe. Throws what Pipeline::step throws.
MeasuredRun measure_run(const Pipe& pipe, const Schedule& schedule,
                        const std::vector<bool>& recompute, const Loss& loss,
                        const Microbatches& batch, const MeasureOptions& options = {},
                        Transport* transport = nullptr);

}  // namespace stagecraft
