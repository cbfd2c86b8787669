#include "stagecraft/partition/split_candidates.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include <c10/core/ScalarType.h>

#include "stagecraft/base/check.h"
#include "stagecraft/partition/uses.h"

namespace stagecraft {

SplitCandidates::SplitCandidates(const Graph& graph)
    : bytes_(graph.parts().nodes.size(), 0), why_not_(graph.parts().nodes.size()) {
  const ValueUses uses(graph);
  const GraphParts& parts = graph.parts();
  const auto end = static_cast<int32_t>(parts.nodes.size());
  // A value crosses all positions after the node that makes it, up to its last read. bytes_ first
  // holds the changes from position to position.
  for (ValueId v(0); parts.values.contains(v); ++v) {
    const ValueUses::Span span = uses.of(v);
    if (!span.is_made_here()) continue;
    const int64_t bytes = example_bytes(graph, v);
    if (span.made + 1 < end) bytes_[static_cast<std::size_t>(span.made) + 1] += bytes;
    if (span.last + 1 < end) bytes_[static_cast<std::size_t>(span.last) + 1] -= bytes;
  }
  std::partial_sum(bytes_.begin(), bytes_.end(), bytes_.begin());
  for (const ValueUses::Memory& memory : uses.memories()) {
    if (memory.writes.empty()) continue;
    const std::string& written = parts.nodes[static_cast<std::size_t>(memory.writes.back())].name;
    if (memory.has_state) {
      for (int32_t p = memory.first + 1; p <= std::min(memory.last, end - 1); ++p) {
        why_not_[static_cast<std::size_t>(p)] =
            fmt::format("{} changes %{} in place, which is used on both sides", written,
                        graph.value(memory.values.front()).name);
      }
      continue;
    }
    for (int32_t p = std::max(memory.first, 0) + 1; p <= std::min(memory.writes.back(), end - 1);
         ++p) {
      std::vector<ValueId> crossing;
      for (const ValueId value : memory.values) {
        const ValueUses::Span span = uses.of(value);
        if (span.made < p && span.last >= p) crossing.push_back(value);
      }
      if (crossing.size() < 2) continue;
      why_not_[static_cast<std::size_t>(p)] =
          fmt::format("{} changes %{} in place, and %{} is a view of it", written,
                      graph.value(crossing[0]).name, graph.value(crossing[1]).name);
    }
  }
}

std::size_t SplitCandidates::best(std::size_t first, std::size_t last, std::size_t wish,
                                  const std::string& what) const {
  std::size_t found = 0;
  first = std::max<std::size_t>(first, 1);
  last = std::min(last, num_nodes() == 0 ? 0 : num_nodes() - 1);
  auto distance = [&](std::size_t p) { return p > wish ? p - wish : wish - p; };
  for (std::size_t p = first; p <= last; ++p) {
    if (!is_legal(p)) continue;
    if (found == 0 || bytes(p) < bytes(found) ||
        (bytes(p) == bytes(found) && distance(p) < distance(found))) {
      found = p;
    }
  }
  require<ArgumentError>(first <= last, "{}: a stage would be empty", what);
  require<ArgumentError>(found != 0, "{}: the graph cannot be split there: {}", what,
                         why_not(std::clamp(wish, first, last)));
  return found;
}

int64_t example_bytes(const Graph& graph, ValueId value) {
  std::vector<int64_t> sizes;
  for (const GraphSize& size : graph.parts().sizes) sizes.push_back(size.example);
  const GraphValue& info = graph.value(value);
  auto bytes = static_cast<int64_t>(c10::elementSize(info.dtype));
  for (const SizeExpr& size : info.shape) bytes *= size.at(sizes);
  return bytes;
}

}  // namespace stagecraft
