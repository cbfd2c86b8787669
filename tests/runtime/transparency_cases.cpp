#include "tests/runtime/transparency_cases.h"

#include <algorithm>

#include <fmt/format.h>

#include "stagecraft/schedule/passes/split_backward.h"

namespace stagecraft {
namespace {

constexpr int32_t kMicrobatches[] = {1, 2, 3, 5, 8};

}  // namespace

int32_t MatrixSchedule::max_stages_per_rank() const {
  return std::max(3, 2 * kind->stages_per_rank.min);
}

ScheduleSource MatrixSchedule::source(int32_t ranks, int32_t stages_per_rank) const {
  ScheduleSource named = ScheduleSource::named(std::string(kind->name), ranks, stages_per_rank);
  if (!is_split) return named;
  return ScheduleSource::made_by(
      [=, kind = kind](int32_t microbatches) {
        return split_backward(kind->build(
            {.ranks = ranks, .microbatches = microbatches, .stages_per_rank = stages_per_rank}));
      },
      named.placement());
}

std::vector<MatrixSchedule> matrix_schedules() {
  std::vector<MatrixSchedule> schedules;
  for (const ScheduleKind& kind : schedule_kinds()) {
    if (!kind.has_backward) continue;
    schedules.push_back({&kind});
    if (kind.stages_per_rank.max == 1) schedules.push_back({&kind, true});
  }
  return schedules;
}

std::span<const int32_t> matrix_microbatches() {
  return kMicrobatches;
}

Microbatches matrix_batch(int32_t microbatches) {
  Microbatches batch;
  for (int32_t m = 0; m < microbatches; ++m) {
    batch.inputs.push_back({{input_of(m, 3)}, {}});
    batch.targets.emplace_back(target_of(m, 3));
  }
  return batch;
}

std::string to_string(const MatrixCase& c) {
  return fmt::format("{}, {} ranks, {} stages, {}, {} microbatches", c.schedule.title(), c.ranks,
                     c.ranks * c.stages_per_rank, c.shape.name, c.microbatches);
}

std::vector<MatrixCase> matrix_cases(int32_t ranks) {
  std::vector<MatrixCase> cases;
  for (const MatrixSchedule& schedule : matrix_schedules()) {
    for (int32_t per_rank = 1; per_rank <= schedule.max_stages_per_rank(); ++per_rank) {
      for (const ModelShape& shape : model_shapes()) {
        if (ranks * per_rank < shape.min_stages) continue;
        for (const int32_t m : kMicrobatches) {
          if (!schedule.kind->takes({ranks, per_rank, m})) continue;
          cases.push_back({schedule, ranks, per_rank, shape, m});
        }
      }
    }
  }
  return cases;
}

}  // namespace stagecraft
