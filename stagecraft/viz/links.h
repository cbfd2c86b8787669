#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "stagecraft/schedule/stage_graph.h"
#include "stagecraft/viz/bars.h"

namespace stagecraft::viz {

/// A value or gradient that goes to a different rank: from the bar that makes it to the bar that
/// needs it.
struct Link {
  std::size_t from_rank = 0;
  const Bar* from = nullptr;
  std::size_t to_rank = 0;
  const Bar* to = nullptr;
};

/// All links, in the order of the bars that need them. The lanes must outlive the result. An action
/// without a bar has no link, so schedules may be forward-only or partial.
std::vector<Link> find_links(std::span<const Lane> lanes, const StageGraph& graph);

}  // namespace stagecraft::viz
