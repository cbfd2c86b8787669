#include "tests/runtime/transparency_cases.h"

#include <fmt/format.h>

#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/passes/split_backward.h"

namespace stagecraft {
namespace {

constexpr MatrixSchedule kSchedules[] = {
    {"GPipe"},           {"1F1B"},          {"LoopedBFS"},
    {"Interleaved1F1B"}, {"ZBVZeroBubble"}, {"InterleavedZeroBubble"},
    {"DualPipeV"},       {"GPipe", true},   {"1F1B", true},
};
constexpr int32_t kMicrobatches[] = {1, 2, 3, 5, 8};

}  // namespace

bool MatrixSchedule::has_shape(int32_t stages_per_rank) const {
  if (name == "GPipe" || name == "1F1B") return stages_per_rank == 1;
  if (name == "ZBVZeroBubble" || name == "DualPipeV") return stages_per_rank == 2;
  return true;
}

bool MatrixSchedule::takes_microbatches(int32_t ranks, int32_t microbatches) const {
  return name != "DualPipeV" || microbatches >= 2 * ranks;
}

ScheduleSource MatrixSchedule::source(int32_t ranks, int32_t stages_per_rank) const {
  ScheduleSource named = ScheduleSource::named(std::string(name), ranks, stages_per_rank);
  if (!is_split) return named;
  return ScheduleSource::made_by(
      [=, word = name](int32_t microbatches) {
        return split_backward(build_schedule(
            word,
            {.ranks = ranks, .microbatches = microbatches, .stages_per_rank = stages_per_rank}));
      },
      named.placement());
}

std::span<const MatrixSchedule> matrix_schedules() {
  return kSchedules;
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
  for (const MatrixSchedule& schedule : kSchedules) {
    for (int32_t per_rank = 1; per_rank <= kMaxMatrixStagesPerRank; ++per_rank) {
      if (!schedule.has_shape(per_rank)) continue;
      for (const ModelShape& shape : model_shapes()) {
        if (ranks * per_rank < shape.min_stages) continue;
        for (const int32_t m : kMicrobatches) {
          if (!schedule.takes_microbatches(ranks, m)) continue;
          cases.push_back({schedule, ranks, per_rank, shape, m});
        }
      }
    }
  }
  return cases;
}

}  // namespace stagecraft
