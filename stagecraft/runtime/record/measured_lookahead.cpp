#include "stagecraft/runtime/record/measured_lookahead.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "stagecraft/runtime/record/stage_times.h"

namespace stagecraft {
namespace {

constexpr double kMilliseconds = 1e-3;

double median_time(std::vector<double> times) {
  if (times.empty()) return 0;
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace

CostModel lookahead_costs(const Recording& recording, std::vector<double> gather) {
  CostModel costs;
  for (StageTimes& times : stage_times(recording)) {
    StageCost& stage = costs.stages.emplace_back();
    stage.forward = median_time(std::move(times.forward));
    stage.backward_input = median_time(std::move(times.backward_input));
    stage.backward_weight = median_time(std::move(times.backward_weight));
    if (!times.backward.empty()) stage.backward = median_time(std::move(times.backward));
  }
  costs.gather = std::move(gather);
  return costs;
}

std::string to_text(const MeasuredLookahead& found) {
  double gather = 0;
  for (const double time : found.costs.gather) gather = std::max(gather, time);
  double forward = found.makespan;
  for (const StageCost& stage : found.costs.stages) forward = std::min(forward, stage.forward);
  return fmt::format(
      "unshard lookahead {} by rank (at most {}): a gather takes up to {:.3g} ms, a forward {:.3g} "
      "ms or more; with these times a step takes {:.4g} ms, the same as with {} on every rank",
      fmt::join(found.lookahead, ","), found.max_active_stages, kMilliseconds * gather,
      kMilliseconds * forward, kMilliseconds * found.makespan, found.max_active_stages);
}

}  // namespace stagecraft
