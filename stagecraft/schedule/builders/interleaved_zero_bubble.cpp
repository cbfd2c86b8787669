#include <algorithm>

#include "stagecraft/schedule/builders/all.h"
#include "stagecraft/schedule/builders/interleaved.h"
#include "stagecraft/schedule/builders/list_writer.h"

namespace stagecraft::builders {
namespace {

// Inserts idle slots before forwards that would run in or before the step that makes their input,
// with all ranks in lock-step.
std::vector<ActionList> align_forwards(const Dims& dims, const std::vector<ActionList>& lists) {
  constexpr int32_t kNever = INT32_MAX;
  std::vector<int32_t> done_in(static_cast<std::size_t>(dims.stages()) * dims.m, kNever);
  std::vector<ActionList> aligned(lists.size());
  std::vector<std::size_t> next(lists.size(), 0);
  bool more = true;
  for (int32_t step = 0; more; ++step) {
    more = false;
    for (std::size_t r = 0; r < lists.size(); ++r) {
      if (next[r] == lists[r].size()) continue;
      const Action action = lists[r][next[r]];
      const bool is_forward = action.type() == ActionType::kForward;
      const std::size_t pair =
          is_forward ? action.stage().position() * dims.m + action.microbatch().position() : 0;
      if (is_forward && action.stage() > StageId(0) && done_in[pair - dims.m] >= step) {
        aligned[r].emplace_back();
        more = true;
        continue;
      }
      if (is_forward) done_in[pair] = step;
      aligned[r].push_back(action);
      ++next[r];
      more = more || next[r] < lists[r].size();
    }
  }
  return aligned;
}

Schedule make_interleaved_zero_bubble(const Dims& dims) {
  const InterleavedOrder order(dims);
  const int64_t total = int64_t{dims.l} * dims.m;
  auto lists = write_lists(dims, 3 * total + 2 * dims.p, [&](int32_t r, ListWriter& out) {
    const int64_t warm_up =
        std::min<int64_t>((dims.l - 1) * int64_t{order.round_size()} + (dims.p - 1 - r), total);
    const auto forward = [&](int64_t op) {
      const auto [chunk, m] = order.forward(op);
      out.forward(chunk * dims.p + r, m);
    };
    const auto backward = [&](int64_t op, ActionType type) {
      const auto [chunk, m] = order.backward(op);
      out.add(chunk * dims.p + r, type, m);
    };

    out.idle(r);
    for (int64_t op = 0; op < warm_up; ++op) forward(op);
    if (warm_up > 0) out.idle(dims.p - 1 - r);
    int64_t weights_done = 0;
    for (int64_t op = 0; op < total; ++op) {
      if (op + warm_up < total) forward(op + warm_up);
      backward(op, ActionType::kBackwardInput);
      // W lags by r microbatches, which fills the bubbles of the cool-down.
      if (op >= r) backward(weights_done++, ActionType::kBackwardWeight);
    }
    while (weights_done < total) backward(weights_done++, ActionType::kBackwardWeight);
  });
  lists = align_forwards(dims, lists);
  return {Level::kCompute, Placement::loop(dims.p, dims.stages()), std::move(lists)};
}

}  // namespace

ScheduleKind interleaved_zero_bubble() {
  return {.name = "InterleavedZeroBubble",
          .summary = "Interleaved1F1B with weight work in the bubbles",
          .make = make_interleaved_zero_bubble,
          .default_stages_per_rank = 2};
}

}  // namespace stagecraft::builders
