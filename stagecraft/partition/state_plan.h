#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "stagecraft/graph/graph.h"
#include "stagecraft/partition/sharing.h"
#include "stagecraft/partition/uses.h"
#include "stagecraft/stage/tied_weight.h"

namespace stagecraft {

/// Which stage holds which parameters, buffers and constants.
struct StatePlan {
  std::vector<std::vector<GraphState>> states;        ///< by stage
  std::vector<std::map<ValueId, std::string>> names;  ///< by stage: the names of its states
  std::vector<TiedWeight> ties;

  bool is_held(ValueId value, int32_t stage) const {
    return names[static_cast<std::size_t>(stage)].contains(value);
  }
  /// The stage that sends a state to stages that do not hold it.
  int32_t owner(ValueId value) const { return owners.at(value); }

  std::map<ValueId, int32_t> owners;
};

/// `stage_of`: the stage of each node.
StatePlan plan_states(const Graph& graph, const ValueUses& uses,
                      const std::vector<int32_t>& stage_of, int32_t stages, const Sharing& sharing);

}  // namespace stagecraft
