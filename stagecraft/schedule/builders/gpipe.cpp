#include "stagecraft/schedule/builders/all.h"
#include "stagecraft/schedule/builders/shape.h"

namespace stagecraft::builders {

Schedule gpipe(const ScheduleShape& shape) {
  const Dims dims = check_shape("GPipe", shape, 1);
  check_stages_per_rank("GPipe", dims, 1);
  auto lists = write_lists(dims, 2 * dims.m, [&](int32_t r, ListWriter& out) {
    for (int32_t m = 0; m < dims.m; ++m) out.forward(r, m);
    for (int32_t m = 0; m < dims.m; ++m) out.backward(r, m);
  });
  return {Level::kCompute, Placement::loop(dims.p, dims.p), std::move(lists)};
}

}  // namespace stagecraft::builders
