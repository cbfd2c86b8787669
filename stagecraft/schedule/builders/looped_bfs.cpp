#include "stagecraft/schedule/builders/all.h"
#include "stagecraft/schedule/builders/list_writer.h"

namespace stagecraft::builders {
namespace {

Schedule make_looped_bfs(const Dims& dims) {
  const int32_t slots = 2 * dims.l * dims.m + 2 * dims.p;
  auto lists = write_lists(dims, slots, [&](int32_t r, ListWriter& out) {
    out.idle(r);
    for (int32_t s = r; s < dims.stages(); s += dims.p) {
      for (int32_t m = 0; m < dims.m; ++m) out.forward(s, m);
    }
    out.idle(2 * (dims.p - 1 - r));
    for (int32_t s = dims.stages() - dims.p + r; s >= 0; s -= dims.p) {
      for (int32_t m = dims.m - 1; m >= 0; --m) out.backward(s, m);
    }
  });
  return {Level::kCompute, Placement::loop(dims.p, dims.stages()), std::move(lists)};
}

}  // namespace

ScheduleKind looped_bfs() {
  return {.name = "LoopedBFS",
          .summary = "GPipe with several stages a rank, breadth first",
          .make = make_looped_bfs,
          .default_stages_per_rank = 2};
}

}  // namespace stagecraft::builders
