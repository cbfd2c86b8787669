#include <algorithm>

#include "stagecraft/schedule/builders/all.h"
#include "stagecraft/schedule/builders/interleaved.h"
#include "stagecraft/schedule/builders/list_writer.h"

namespace stagecraft::builders {
namespace {

Schedule make_interleaved_1f1b(const Dims& dims) {
  const InterleavedOrder order(dims);
  const int64_t total = int64_t{dims.l} * dims.m;
  auto lists = write_lists(dims, 2 * total + 3 * dims.p, [&](int32_t r, ListWriter& out) {
    const int64_t warm_up =
        std::min<int64_t>((dims.l - 1) * int64_t{order.round_size()} + 2 * (dims.p - 1 - r), total);
    const auto forward = [&](int64_t op) {
      const auto [chunk, m] = order.forward(op);
      out.forward(chunk * dims.p + r, m);
    };

    out.idle(r);
    for (int64_t op = 0; op < warm_up; ++op) forward(op);
    if (warm_up > 0) {
      out.idle(
          static_cast<int32_t>(dims.l * int64_t{dims.p} + 2 * (dims.p - 1 - r) - (warm_up + r)));
    }
    for (int64_t op = warm_up; op < warm_up + total; ++op) {
      if (op < total) {
        forward(op);
      } else {
        out.idle(1);
      }
      const auto [chunk, m] = order.backward(op - warm_up);
      out.backward(chunk * dims.p + r, m);
    }
  });
  return {Level::kCompute, Placement::loop(dims.p, dims.stages()), std::move(lists)};
}

}  // namespace

ScheduleKind interleaved_1f1b() {
  return {.name = "Interleaved1F1B",
          .summary = "1F1B with several stages a rank, a smaller bubble",
          .make = make_interleaved_1f1b,
          .default_stages_per_rank = 2};
}

}  // namespace stagecraft::builders
