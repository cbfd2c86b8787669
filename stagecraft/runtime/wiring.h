#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/base/index.h"
#include "stagecraft/runtime/replica_place.h"
#include "stagecraft/schedule/placement.h"
#include "stagecraft/schedule/stage_graph.h"
#include "stagecraft/stage/ports.h"

namespace stagecraft {

/// The ports, or by default a chain. ArgumentError if they are for a different number of stages.
Ports ports_or_chain(const std::optional<Ports>& ports, int32_t stages);

/// The edges between the stages, in the form that schedules use.
StageGraph stage_graph_of(const Ports& ports);

/// The values that one stage sends to a later one: first those of Ports::connect, in the order of
/// `connections`, then those of the chain.
struct WireEdge {
  StageId from;
  StageId to;
  std::vector<Ports::Connection> connections;
  bool has_chain = false;

  Rank peer;              ///< of the other stage, in the world
  bool is_local = false;  ///< the other stage is on this rank
  /// For local edges: the index of the other stage on this rank, and of this edge in its list.
  int32_t peer_stage = -1;
  int32_t peer_edge = -1;
};

/// One stage of a rank and its connections.
struct StageWires {
  StageId stage;
  std::vector<WireEdge> in;   ///< by producer, ascending
  std::vector<WireEdge> out;  ///< by consumer, ascending
  std::vector<Ports::Feed> feeds;
  /// Stage 0 takes the model's arguments that have no Ports::feed.
  bool takes_model_arguments = false;
};

/// The wires of one rank's stages, in the order of its stages.
class Wiring {
 public:
  Wiring(const Ports& ports, const Placement& placement, const ReplicaPlace& place);

  const Ports& ports() const { return ports_; }
  /// The other ranks that take values or gradients from this one, in the world; a rank may occur
  /// several times.
  std::vector<Rank> peers() const;
  std::span<const StageWires> stages() const { return stages_; }
  /// The index of the stage on this rank; -1 if it is on a different rank.
  int32_t local_index(StageId stage) const { return local_[stage]; }
  /// Whether the output has a Ports::connect, and therefore is not carried by the chain.
  bool is_connected(StageId stage, std::size_t output) const {
    const auto& flags = connected_[stage];
    return output < flags.size() && flags[output];
  }
  /// Whether the model's argument has a Ports::feed.
  bool is_fed(std::size_t argument) const { return argument < fed_.size() && fed_[argument]; }
  bool is_fed(std::string_view name) const {
    return std::find(fed_names_.begin(), fed_names_.end(), name) != fed_names_.end();
  }

 private:
  Ports ports_;
  std::vector<StageWires> stages_;
  IndexedVector<StageId, int32_t> local_;
  IndexedVector<StageId, std::vector<bool>> connected_;  // by output
  std::vector<bool> fed_;
  std::vector<std::string> fed_names_;
};

}  // namespace stagecraft
