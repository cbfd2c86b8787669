#include "stagecraft/viz/links.h"

#include <algorithm>
#include <cstdint>
#include <tuple>

namespace stagecraft::viz {
namespace {

struct Entry {
  bool gradient = false;
  int32_t stage = 0;
  int32_t microbatch = 0;
  std::size_t rank = 0;
  const Bar* bar = nullptr;

  auto key() const { return std::tuple(gradient, stage, microbatch); }
};

}  // namespace

std::vector<Link> find_links(std::span<const Lane> lanes, const StageGraph& graph) {
  // The bars that make an output (F) or the gradients of inputs (I, B). They are sorted and
  // searched: a table by stage and microbatch could be far larger than the number of bars.
  std::vector<Entry> makers;
  for (std::size_t rank = 0; rank < lanes.size(); ++rank) {
    for (const Bar& bar : lanes[rank].bars) {
      const bool gradient = makes_input_gradients(bar.action.type());
      if (!gradient && bar.action.type() != ActionType::kForward) continue;
      makers.push_back(
          {gradient, bar.action.stage().value(), bar.action.microbatch().value(), rank, &bar});
    }
  }
  std::stable_sort(makers.begin(), makers.end(),
                   [](const Entry& a, const Entry& b) { return a.key() < b.key(); });

  std::vector<Link> links;
  for (std::size_t rank = 0; rank < lanes.size(); ++rank) {
    for (const Bar& bar : lanes[rank].bars) {
      const bool gradient = makes_input_gradients(bar.action.type());
      if (!gradient && bar.action.type() != ActionType::kForward) continue;
      const StageId stage = bar.action.stage();
      if (stage.value() >= graph.num_stages()) continue;
      for (const StageId other : gradient ? graph.consumers(stage) : graph.producers(stage)) {
        const Entry wanted{gradient, other.value(), bar.action.microbatch().value()};
        const auto found =
            std::lower_bound(makers.begin(), makers.end(), wanted,
                             [](const Entry& a, const Entry& b) { return a.key() < b.key(); });
        if (found == makers.end() || found->key() != wanted.key() || found->rank == rank) continue;
        links.push_back({found->rank, found->bar, rank, &bar});
      }
    }
  }
  return links;
}

}  // namespace stagecraft::viz
