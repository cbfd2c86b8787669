#include "stagecraft/schedule/builders/all.h"
#include "stagecraft/schedule/builders/list_writer.h"

namespace stagecraft::builders {
namespace {

Schedule make_forward_only(const Dims& dims) {
  auto lists = write_lists(dims, dims.l * dims.m, [&](int32_t r, ListWriter& out) {
    for (int32_t s = r; s < dims.stages(); s += dims.p) {
      for (int32_t m = 0; m < dims.m; ++m) out.forward(s, m);
    }
  });
  return {Level::kCompute, Placement::loop(dims.p, dims.stages()), std::move(lists)};
}

}  // namespace

ScheduleKind forward_only() {
  return {.name = "ForwardOnly",
          .summary = "inference",
          .make = make_forward_only,
          .has_backward = false};
}

}  // namespace stagecraft::builders
