#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "stagecraft/runtime/schedule_source.h"
#include "stagecraft/runtime/step.h"
#include "tests/support/test_model.h"

namespace stagecraft {

/// A model, its batch and the schedule that runs it, all of it decided by a seed.
struct RandomModel {
  TestModel model;
  ScheduleSource source;
  std::string schedule;   ///< what `source` is, in words
  std::string text = {};  ///< what the stages do and how they are connected, a line each
  int32_t microbatches = 1;
  /// Tensors of their own with the same values in each call.
  std::function<Microbatches()> make_batch = {};
  /// A sum of gradients is grouped differently than in the uncut model: a value or an input of
  /// the model has several readers.
  bool is_regrouped = false;
  bool is_double = false;
  bool zero_buffering = false;
  bool evals_first = false;
  std::shared_ptr<std::atomic<int64_t>> hook_calls = {};
  std::set<std::string> features = {};  ///< what occurs in it, for tallies
};

RandomModel make_random_model(uint64_t seed);

/// A schedule of actions in any order that their dependencies allow, with any mixture of full and
/// split backwards, on ranks that hold any stages.
Schedule make_random_schedule(const Placement& placement, const StageGraph& graph,
                              int32_t microbatches, uint64_t seed);
Placement make_random_placement(int32_t stages, uint64_t seed);

}  // namespace stagecraft
