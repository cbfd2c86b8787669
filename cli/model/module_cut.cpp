#include "cli/model/module_cut.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

namespace stagecraft::cli {
namespace {

/// So many steps take about a second.
constexpr std::size_t kMostSteps = 300'000'000;

/// The most FLOP of a stage and the most bytes over a border: less is better.
using Cost = std::pair<int64_t, int64_t>;

/// One of the ways to end stage s before a candidate: what it costs, and where the stage begins.
struct Choice {
  Cost cost = {std::numeric_limits<int64_t>::max(), 0};
  std::size_t begin = 0;
};

}  // namespace

std::optional<ModuleCut> cut_at_modules(const std::vector<BorderFacts>& borders,
                                        int64_t total_flops, std::size_t stages,
                                        std::size_t depth) {
  // Where stages may begin: the model's beginning, borders, and its end.
  std::vector<const BorderFacts*> places;
  for (const BorderFacts& border : borders) {
    if (border.is_legal() && border.begins_module(depth)) places.push_back(&border);
  }
  const std::size_t end = places.size() + 1;
  if (stages < 2 || places.size() + 1 < stages || stages * end * end > kMostSteps) return {};
  auto flops_before = [&](std::size_t i) {
    return i == 0 ? 0 : i == end ? total_flops : places[i - 1]->flops_before;
  };
  auto bytes_at = [&](std::size_t i) { return i == 0 ? 0 : places[i - 1]->bytes; };
  // best[s][i]: stages 0 to s end before place i.
  std::vector<std::vector<Choice>> best(stages, std::vector<Choice>(end + 1));
  for (std::size_t i = 1; i <= end; ++i) best[0][i] = {{flops_before(i), 0}, 0};
  for (std::size_t s = 1; s < stages; ++s) {
    for (std::size_t i = s + 1; i <= end; ++i) {
      for (std::size_t begin = s; begin < i; ++begin) {
        const Cost before = best[s - 1][begin].cost;
        const Cost cost = {std::max(before.first, flops_before(i) - flops_before(begin)),
                           std::max(before.second, bytes_at(begin))};
        if (cost < best[s][i].cost) best[s][i] = {cost, begin};
      }
    }
  }
  ModuleCut cut;
  std::tie(cut.flops, cut.bytes) = best[stages - 1][end].cost;
  std::size_t at = end;
  for (std::size_t s = stages - 1; s > 0; --s) {
    at = best[s][at].begin;
    cut.names.push_back(places[at - 1]->names.front());
  }
  std::ranges::reverse(cut.names);
  return cut;
}

}  // namespace stagecraft::cli
