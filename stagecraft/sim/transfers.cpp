#include "stagecraft/sim/transfers.h"

#include <algorithm>
#include <map>
#include <utility>

#include "stagecraft/base/check.h"

namespace stagecraft {

Transfers::Transfers(const Schedule& schedule, const StageGraph& graph, const CostModel& costs)
    : columns_(static_cast<std::size_t>(schedule.num_microbatches())) {
  const std::size_t count = graph.edges().size() * columns_;
  require<ArgumentError>(count / 64 <= static_cast<std::size_t>(schedule.num_actions()) + 1024,
                         "simulate: only {} actions for {} edges and {} microbatches",
                         schedule.num_actions(), graph.edges().size(), columns_);
  const auto stages = static_cast<std::size_t>(graph.num_stages());
  IndexedVector<StageId, std::vector<End>> in(graph.num_stages());
  first_out_.push_back(0);
  for (std::size_t edge = 0; edge < graph.edges().size(); ++edge) {
    const auto [from, to] = graph.edges()[edge];
    while (first_out_.size() <= from.position()) {
      first_out_.push_back(out_.size());
    }
    out_.push_back({to, edge});
    in[to].push_back({from, edge});
  }
  first_out_.resize(stages + 1, out_.size());
  for (const std::vector<End>& ends : in) {
    first_in_.push_back(in_.size());
    in_.insert(in_.end(), ends.begin(), ends.end());
  }
  first_in_.push_back(in_.size());

  std::map<std::pair<Rank, Rank>, uint32_t> known;
  std::map<std::pair<Rank, Rank>, LinkCost> given;
  for (const CostModel::PerLink& entry : costs.links) {
    given[{entry.from, entry.to}] = entry.cost;
  }
  const auto link_between = [&](Rank from, Rank to) -> uint32_t {
    if (from == to || from == Placement::kNowhere || to == Placement::kNowhere) return kNoLink;
    const auto [found, is_new] =
        known.try_emplace({from, to}, static_cast<uint32_t>(links_.size()));
    if (is_new) {
      const auto own = given.find({from, to});
      links_.push_back({own == given.end() ? costs.link : own->second});
    }
    return found->second;
  };
  const IndexedVector<StageId, Rank>& rank_of = schedule.placement().ranks();
  for (const StageEdge& edge : graph.edges()) {
    const Rank from = rank_of[edge.from];
    const Rank to = rank_of[edge.to];
    link_[0].push_back(link_between(from, to));
    link_[1].push_back(link_between(to, from));
    const std::vector<double>& bytes = costs.output_bytes;
    bytes_.push_back(bytes.empty() ? 0 : bytes[std::min(edge.from.position(), bytes.size() - 1)]);
  }
  transfers_[0].resize(count);
  transfers_[1].resize(count);
}

void Transfers::send(Direction direction, std::size_t edge, MicrobatchId m, double ready,
                     double posted) {
  const auto d = static_cast<std::size_t>(direction);
  Link& link = links_[link_[d][edge]];
  double left = std::max(ready, posted);
  if (link.cost.bandwidth) {
    left = std::max(left, link.free_at) + bytes_[edge] / *link.cost.bandwidth;
    link.free_at = left;
  }
  transfers_[d][edge * columns_ + m.position()] = {ready, left, left + link.cost.latency};
}

}  // namespace stagecraft
