#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "stagecraft/base/index.h"
#include "stagecraft/graph/graph.h"
#include "stagecraft/partition/sharing.h"
#include "stagecraft/partition/split_candidates.h"
#include "stagecraft/stage/ports.h"
#include "stagecraft/stage/tied_weight.h"

namespace stagecraft {

/// The source of an argument of a stage: a positional argument of the model.
struct FromArgument {
  int32_t argument = 0;
};
/// The source of a positional argument of a stage: an argument of the model, or an output of an
/// earlier stage.
using StageSource = std::variant<FromArgument, OutputPort>;

/// One stage of a split model.
struct StagePlan {
  Graph graph;
  /// One for each positional argument. Arguments by name are those of the model.
  std::vector<StageSource> sources;
};

/// A model that is split into stages.
struct PipePlan {
  std::vector<StagePlan> stages;
  std::vector<TiedWeight> ties;
};

/// How the stages are connected. ArgumentError for sources that do not exist.
Ports ports_of(const std::vector<StagePlan>& stages);

/// Splits a graph. Values that later stages read become outputs, in the order in which they are
/// made. A model input enters at each stage that reads it; fixed inputs enter at stage 0, which
/// checks them. A value that one stage changes in place and a different stage reads is copied
/// first. The last stage returns the output of the model. Parameters and buffers keep their names:
/// a state with several names has in each stage the name that is read there. A state that no
/// operator reads goes to the stage of the state with the most similar name. ArgumentError for a
/// shared parameter that does not exist.
PipePlan plan_stages(const Graph& graph, const SplitPositions& positions, const Sharing& sharing);

}  // namespace stagecraft
