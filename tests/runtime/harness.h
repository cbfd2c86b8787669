#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/base/index.h"
#include "stagecraft/runtime/pipeline.h"
#include "stagecraft/runtime/runner.h"
#include "stagecraft/runtime/schedule_source.h"
#include "stagecraft/runtime/step.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/passes/lower.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/transport/local/local_world.h"
#include "tests/support/reference.h"
#include "tests/support/test_model.h"

/// What tests of pipelines do again and again.
namespace stagecraft {

/// Random numbers that the seed alone decides.
at::Tensor random_tensor(const std::vector<int64_t>& sizes, uint64_t seed);
/// A parameter: a leaf that requires grad.
at::Tensor random_parameter(const std::vector<int64_t>& sizes, uint64_t seed);
/// Inputs and targets of [rows, width] in microbatches, weighted by their rows.
Microbatches random_batch(int32_t microbatches, int64_t rows, int64_t width, uint64_t seed);

/// tanh(linear) in each stage, parameters "weight" and "bias", mean squared error.
TestModel chain_model(int32_t stages, int64_t width = 5, uint64_t seed = 0);

/// A schedule that a builder makes, in a shape that is legal for it.
struct ScheduleCase {
  std::string name;
  int32_t ranks = 1;
  int32_t stages_per_rank = 1;
  int32_t microbatches = 1;
  std::optional<LowerOptions> lowering = std::nullopt;

  int32_t stages() const { return ranks * stages_per_rank; }
  /// Whether the schedule can have that number of microbatches.
  bool takes(int32_t number) const {
    return get_schedule_kind(name).takes({ranks, stages_per_rank, number});
  }
  ScheduleSource source() const {
    return ScheduleSource::named(name, ranks, stages_per_rank, lowering);
  }
};
/// "1F1B, 2 ranks, 1 stages each, 4 microbatches".
std::string to_string(const ScheduleCase& schedule);
/// All that train, with as many stages a rank as suit them and 2 microbatches a rank, or more where
/// the schedule needs more.
std::vector<ScheduleCase> training_cases(int32_t ranks);

/// A pipeline over new stages of the model; ports, loss and ties are the model's.
Pipeline make_pipeline(const TestModel& model, PipelineOptions options = {});
Pipeline make_pipeline(const TestModel& model, const ScheduleCase& schedule,
                       PipelineOptions options = {});

/// What the cut loop gives for a step in the order of `schedule`: takes the gradients away again.
std::vector<at::Tensor> cut_grads(const TestModel& model, const Microbatches& batch,
                                  const Schedule& schedule, const Draws& draws = {});

/// One step of the pipeline against the cut loop, gradients, losses and outputs bit for bit; what
/// differs, or nothing. Takes all gradients away, before and after.
std::string check_step(Pipeline& pipeline, const TestModel& model, const Microbatches& batch,
                       const Draws& draws = {});

/// How many forwards wait for their backward, over all stages.
std::size_t num_pending(Pipeline& pipeline);

/// Every rank's runner on a thread of its own, as a program that is started once for each rank:
/// calls `body` on each and returns when all have. Ports, loss and ties are the model's.
void run_spmd(const ScheduleSource& source, const TestModel& model, PipelineOptions options,
              const std::function<void(Runner& runner, Transport& transport)>& body);
/// The stages that a rank has, and options filled in from the model.
std::vector<Stage> stages_on(const TestModel& model, const Placement& placement, Rank rank);
PipelineOptions runner_options(const TestModel& model, PipelineOptions options = {});

/// What of a batch this rank is given: inputs where stage 0 is, targets where the last one is.
Microbatches part_of(const Microbatches& batch, const Placement& placement, Rank rank);

}  // namespace stagecraft
