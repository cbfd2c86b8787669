#include <algorithm>

#include "stagecraft/schedule/builders/all.h"
#include "stagecraft/schedule/builders/shape.h"

namespace stagecraft::builders {

Schedule one_f_one_b(const ScheduleShape& shape) {
  const Dims dims = check_shape("1F1B", shape, 1);
  check_stages_per_rank("1F1B", dims, 1);
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

}  // namespace stagecraft::builders
