#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stagecraft/runtime/schedule_source.h"
#include "stagecraft/runtime/step.h"
#include "stagecraft/schedule/builders/builders.h"
#include "tests/runtime/transparency_models.h"

/// The combinations of schedule, stages, model and microbatches in which a pipeline must train as
/// the model itself does.
namespace stagecraft {

struct MatrixSchedule {
  const ScheduleKind* kind = nullptr;
  bool is_split = false;  ///< each B as I and W

  std::string title() const { return std::string(kind->name) + (is_split ? ", split" : ""); }
  /// The largest number of stages a rank that is tried; the smallest is 1.
  int32_t max_stages_per_rank() const;
  ScheduleSource source(int32_t ranks, int32_t stages_per_rank) const;
};

/// Every schedule that trains; those with one stage a rank also split.
std::vector<MatrixSchedule> matrix_schedules();
std::span<const int32_t> matrix_microbatches();

/// Three rows in each; tensors of its own with the same values in every call.
Microbatches matrix_batch(int32_t microbatches);
/// Rows of a batch that is cut into uneven microbatches: 7 6, 5 4 4, 3 3 3 2 2, 2 2 2 2 2 1 1 1.
constexpr int64_t kUnevenRows = 13;

struct MatrixCase {
  MatrixSchedule schedule;
  int32_t ranks = 1;
  int32_t stages_per_rank = 1;
  ModelShape shape;
  int32_t microbatches = 1;
};
/// "1F1B, split, 2 ranks, 2 stages, chain, 3 microbatches".
std::string to_string(const MatrixCase& c);
/// All that are legal on that number of ranks.
std::vector<MatrixCase> matrix_cases(int32_t ranks);

}  // namespace stagecraft
