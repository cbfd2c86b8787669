#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "stagecraft/graph/graph.h"
#include "stagecraft/partition/pipe.h"
#include "stagecraft/plan/plan_problem.h"
#include "stagecraft/runtime/loss.h"
#include "stagecraft/runtime/step.h"

namespace stagecraft {

/// Options for measuring layers.
struct MeasureOptions {
  /// Threads that compute at the same time, as the ranks of the planned pipeline will: cores that
  /// work together slow each other.
  int32_t ranks = 1;
  int32_t warm_up = 3;  ///< steps that do not count, at least one
  int32_t steps = 7;    ///< steps that count; the median of all their microbatches is taken
  /// The time after which no further step is begun, once one has counted.
  std::chrono::microseconds time_limit = std::chrono::seconds(15);
  int32_t threads_per_rank = 1;
};

/// Names of modules at whose beginnings the graph can be split, for Split::points: layers and
/// modules beside them. If there are more than `most`, every n-th. In the order of the graph.
std::vector<std::string> layer_names(const Graph& graph, std::size_t most = 64);

/// Runs every stage of the pipe on the microbatches of a batch, and returns a layer for each: its
/// F, I, W and full backward in milliseconds, waiting excluded, on the device's clock if it is not
/// the CPU; bytes that it holds and needs while it runs; bytes of the values that cross the
/// boundary after it, skip connections included; bytes of parameters, gradients and AdamW's state.
/// `names`: of all stages but the first.
///
/// Changes gradients and buffers of the pipe: use one that is not trained afterwards. Throws what
/// Pipeline::step throws.
std::vector<PlanLayer> measure_layers(const Pipe& pipe, const Loss& loss, const Microbatches& batch,
                                      const std::vector<std::string>& names,
                                      const MeasureOptions& options = {});

/// Layers from the model alone, without running it: F in proportion to the floating-point
/// operations (I and W as much each), bytes from the sizes of the example. Times are in units of a
/// million operations.
std::vector<PlanLayer> estimate_layers(const Graph& graph, const std::vector<std::string>& names);

}  // namespace stagecraft
