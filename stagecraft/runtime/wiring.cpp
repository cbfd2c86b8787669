#include "stagecraft/runtime/wiring.h"

#include <algorithm>
#include <utility>

#include "stagecraft/base/check.h"

namespace stagecraft {

namespace {

void set_flag(std::vector<bool>& flags, int32_t at) {
  const auto i = static_cast<std::size_t>(at);
  if (flags.size() <= i) flags.resize(i + 1);
  flags[i] = true;
}

WireEdge make_edge(const Ports& ports, StageId from, StageId to) {
  WireEdge edge;
  edge.from = from;
  edge.to = to;
  for (const Ports::Connection& connection : ports.connections()) {
    if (connection.from.stage == from && connection.to.stage == to) {
      edge.connections.push_back(connection);
    }
  }
  edge.has_chain = ports.has_chain() && from + 1 == to;
  return edge;
}

int32_t find_edge(const std::vector<WireEdge>& edges, StageId from, StageId to) {
  const auto found = std::find_if(edges.begin(), edges.end(), [&](const WireEdge& edge) {
    return edge.from == from && edge.to == to;
  });
  return found == edges.end() ? -1 : static_cast<int32_t>(found - edges.begin());
}

}  // namespace

Ports ports_or_chain(const std::optional<Ports>& ports, int32_t stages) {
  if (!ports) return Ports(stages);
  require<ArgumentError>(ports->num_stages() == stages,
                         "the ports are for {} stages, but the model has {}", ports->num_stages(),
                         stages);
  return *ports;
}

StageGraph stage_graph_of(const Ports& ports) {
  std::vector<StageEdge> edges;
  for (const Ports::Connection& connection : ports.connections()) {
    const StageEdge edge{connection.from.stage, connection.to.stage};
    if (std::find(edges.begin(), edges.end(), edge) == edges.end()) edges.push_back(edge);
  }
  const int32_t stages = ports.num_stages();
  return ports.has_chain() ? StageGraph::chain(stages).with_edges(edges)
                           : StageGraph::of(stages, edges);
}

Wiring::Wiring(const Ports& ports, const Placement& placement, const ReplicaPlace& place)
    : ports_(ports), local_(ports.num_stages(), -1), connected_(ports.num_stages()) {
  const StageGraph graph = stage_graph_of(ports);
  for (const StageId stage : placement.stages(place.own())) {
    local_[stage] = static_cast<int32_t>(stages_.size());
    StageWires& wires = stages_.emplace_back();
    wires.stage = stage;
    wires.takes_model_arguments = ports.has_chain() && stage.value() == 0;
    for (const StageId from : graph.producers(stage)) {
      wires.in.push_back(make_edge(ports, from, stage));
      wires.in.back().peer = place.in_world(placement.get_rank(from));
    }
    for (const StageId to : graph.consumers(stage)) {
      wires.out.push_back(make_edge(ports, stage, to));
      wires.out.back().peer = place.in_world(placement.get_rank(to));
    }
    for (const Ports::Feed& feed : ports.feeds()) {
      if (feed.to.stage == stage) wires.feeds.push_back(feed);
    }
  }
  const auto connect = [&](WireEdge& edge, StageId peer, std::vector<WireEdge> StageWires::*edges) {
    edge.peer_stage = local_index(peer);
    edge.is_local = edge.peer_stage >= 0;
    if (!edge.is_local) return;
    const StageWires& wires = stages_[static_cast<std::size_t>(edge.peer_stage)];
    edge.peer_edge = find_edge(wires.*edges, edge.from, edge.to);
  };
  for (StageWires& wires : stages_) {
    for (WireEdge& edge : wires.in) connect(edge, edge.from, &StageWires::out);
    for (WireEdge& edge : wires.out) connect(edge, edge.to, &StageWires::in);
  }
  for (const Ports::Connection& connection : ports.connections()) {
    set_flag(connected_[connection.from.stage], connection.from.output);
  }
  for (const Ports::Feed& feed : ports.feeds()) {
    if (feed.argument) {
      set_flag(fed_, *feed.argument);
    } else {
      fed_names_.push_back(feed.name);
    }
  }
}

std::vector<Rank> Wiring::peers() const {
  std::vector<Rank> peers;
  for (const StageWires& stage : stages_) {
    for (const auto* edges : {&stage.in, &stage.out}) {
      for (const WireEdge& edge : *edges) {
        if (!edge.is_local) peers.push_back(edge.peer);
      }
    }
  }
  return peers;
}

}  // namespace stagecraft
