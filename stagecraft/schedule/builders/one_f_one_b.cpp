#include <algorithm>

#include "stagecraft/schedule/builders/all.h"
#include "stagecraft/schedule/builders/list_writer.h"

namespace stagecraft::builders {
namespace {

Schedule make_one_f_one_b(const Dims& dims) {
  auto lists = write_lists(dims, 2 * dims.m, [&](int32_t r, ListWriter& out) {
    const int32_t warm_up = std::min(dims.m, dims.p - r);
    for (int32_t m = 0; m < warm_up; ++m) out.forward(r, m);
    for (int32_t m = 0; m < dims.m; ++m) {
      out.backward(r, m);
      if (warm_up + m < dims.m) out.forward(r, warm_up + m);
    }
  });
  return {Level::kCompute, Placement::loop(dims.p, dims.p), std::move(lists)};
}

}  // namespace

ScheduleKind one_f_one_b() {
  return {.name = "1F1B",
          .summary = "forward and backward in turns, few activations at a time",
          .make = make_one_f_one_b,
          .stages_per_rank = {.max = 1}};
}

}  // namespace stagecraft::builders
