#include "stagecraft/plan/paths.h"

#include <algorithm>

namespace stagecraft::plan {

Paths::Paths(const Instance& in, PathEdges edges)
    : head(in.rank_of.size(), 0.0),
      head_input(in.rank_of.size(), 0.0),
      tail(in.rank_of.size(), 0.0),
      tail_input(in.rank_of.size(), 0.0) {
  const double x = in.least_size;
  const auto counts = [&](const Instance::Edge& edge) {
    return edges == PathEdges::kAll || edge.to == edge.from + 1;
  };
  for (int32_t s = 0; s < in.stages; ++s) {
    tail_input[s] = x * in.time[kW][s];
    for (const int32_t e : in.in(s)) {
      const Instance::Edge& edge = in.edges[e];
      if (!counts(edge)) continue;
      const int32_t p = edge.from;
      head[s] = std::max(head[s], head[p] + x * in.time[kF][p] + edge.delay(0));
      tail_input[s] = std::max(tail_input[s], edge.delay(1) + x * in.time[kI][p] + tail_input[p]);
    }
  }
  for (int32_t s = in.stages - 1; s >= 0; --s) {
    head_input[s] = head[s] + x * in.time[kF][s];
    tail[s] = x * in.time[kI][s] + tail_input[s];
    for (const int32_t e : in.out(s)) {
      const Instance::Edge& edge = in.edges[e];
      if (!counts(edge)) continue;
      const int32_t n = edge.to;
      head_input[s] = std::max(head_input[s], head_input[n] + x * in.time[kI][n] + edge.delay(1));
      tail[s] = std::max(tail[s], edge.delay(0) + x * in.time[kF][n] + tail[n]);
    }
  }
}

}  // namespace stagecraft::plan
