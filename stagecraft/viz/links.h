#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "stagecraft/schedule/stage_graph.h"
#include "stagecraft/viz/bars.h"

namespace stagecraft::viz {

/// A value or gradient that goes from one rank to another: from the bar that makes it to the bar
/// that needs it.
struct Link {
  std::size_t from_rank = 0;
  const Bar* from = nullptr;
  std::size_t to_rank = 0;
  const Bar* to = nullptr;
};

/// All of them, in the order of the bars that need them. The lanes must outlive the result.
/// Whatever is not among the bars has no link: forward-only and partial schedules are fine.
std::vector<Link> find_links(std::span<const Lane> lanes, const StageGraph& graph);

}  // namespace stagecraft::viz
