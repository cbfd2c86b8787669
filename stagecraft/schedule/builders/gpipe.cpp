#include "stagecraft/schedule/builders/all.h"
#include "stagecraft/schedule/builders/list_writer.h"

namespace stagecraft::builders {
namespace {

Schedule make_gpipe(const Dims& dims) {
  auto lists = write_lists(dims, 2 * dims.m, [&](int32_t r, ListWriter& out) {
    for (int32_t m = 0; m < dims.m; ++m) out.forward(r, m);
    for (int32_t m = 0; m < dims.m; ++m) out.backward(r, m);
  });
  return {Level::kCompute, Placement::loop(dims.p, dims.p), std::move(lists)};
}

}  // namespace

ScheduleKind gpipe() {
  return {.name = "GPipe",
          .summary = "all forwards, then all backwards",
          .make = make_gpipe,
          .stages_per_rank = {.max = 1}};
}

}  // namespace stagecraft::builders
