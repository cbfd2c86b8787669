#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "stagecraft/base/index.h"
#include "stagecraft/graph/graph.h"
#include "stagecraft/partition/cuts.h"
#include "stagecraft/partition/sharing.h"
#include "stagecraft/stage/ports.h"
#include "stagecraft/stage/tied_weight.h"

namespace stagecraft {

/// Where a positional argument of a stage comes from: one of the model, or another stage.
struct FromArgument {
  int32_t argument = 0;
};
/// Where one argument of a stage comes from.
using StageSource = std::variant<FromArgument, OutputPort>;

/// One stage of a model that was cut.
struct StagePlan {
  Graph graph;
  /// One for each positional argument; arguments by name are those of the model.
  std::vector<StageSource> sources;
};

/// A model cut into stages.
struct PipePlan {
  std::vector<StagePlan> stages;
  std::vector<TiedWeight> ties;
};

/// How the stages are connected. ArgumentError for sources that are not there.
Ports ports_of(const std::vector<StagePlan>& stages);

/// Cuts a graph. Values that later stages read become outputs, in the order in which they are made;
/// model inputs enter where they are read, and those that are fixed in stage 0, which checks them.
/// A value that one stage changes in place and another reads is copied first. The last stage
/// returns what the model returns. Parameters and buffers keep their names: one that has several
/// goes to each stage under the name that is read there; what no operator reads goes to the stage
/// of what is named most like it. ArgumentError for a shared parameter that does not exist.
PipePlan plan_stages(const Graph& graph, const CutList& cuts, const Sharing& sharing);

}  // namespace stagecraft
