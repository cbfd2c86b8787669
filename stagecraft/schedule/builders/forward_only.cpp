#include "stagecraft/schedule/builders/all.h"
#include "stagecraft/schedule/builders/shape.h"

namespace stagecraft::builders {

Schedule forward_only(const ScheduleShape& shape) {
  const Dims dims = check_shape("ForwardOnly", shape, 1);
  auto lists = write_lists(dims, dims.l * dims.m, [&](int32_t r, ListWriter& out) {
    for (int32_t s = r; s < dims.stages(); s += dims.p) {
      for (int32_t m = 0; m < dims.m; ++m) out.forward(s, m);
    }
  });
  return {Level::kCompute, Placement::loop(dims.p, dims.stages()), std::move(lists)};
}

}  // namespace stagecraft::builders
