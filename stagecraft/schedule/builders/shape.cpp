#include "stagecraft/schedule/builders/shape.h"

#include "stagecraft/base/check.h"

namespace stagecraft::builders {
namespace {

// Pairs of a stage and a microbatch. A lowered schedule has about six actions of eight bytes for
// each.
constexpr int64_t kMaxPairs = int64_t{1} << 26;
// Idle slots grow with the square of the ranks.
constexpr int32_t kMaxRanks = 2048;

void check_positive(std::string_view name, std::string_view what, int32_t value) {
  require<ArgumentError>(value >= 1, "{}: the number of {} must be at least 1, got {}", name, what,
                         value);
}

}  // namespace

Dims check_shape(std::string_view name, const ScheduleShape& shape,
                 int32_t default_stages_per_rank) {
  const Dims dims{shape.ranks, shape.stages_per_rank.value_or(default_stages_per_rank),
                  shape.microbatches};
  check_positive(name, "ranks", dims.p);
  check_positive(name, "stages per rank", dims.l);
  check_positive(name, "microbatches", dims.m);
  require<ArgumentError>(dims.p <= kMaxRanks, "{}: at most {} ranks, got {}", name, kMaxRanks,
                         dims.p);
  const int64_t stages = int64_t{dims.p} * dims.l;
  require<ArgumentError>(
      stages <= kMaxPairs && stages * dims.m <= kMaxPairs,
      "{}: {} ranks x {} stages x {} microbatches are too many; their product is "
      "at most {}",
      name, dims.p, dims.l, dims.m, kMaxPairs);
  require<ArgumentError>(stages <= Action::kMaxStage + 1, "{}: at most {} stages, got {}", name,
                         Action::kMaxStage + 1, stages);
  return dims;
}

void check_stages_per_rank(std::string_view name, const Dims& dims, int32_t expected) {
  require<ArgumentError>(dims.l == expected,
                         "{} has {} stage{} a rank, got {}; the nearest legal value is {}", name,
                         expected, expected == 1 ? "" : "s", dims.l, expected);
}

}  // namespace stagecraft::builders
