#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/runtime/pipeline.h"
#include "stagecraft/runtime/schedule_source.h"
#include "stagecraft/runtime/step.h"
#include "tests/support/test_model.h"

namespace stagecraft {

struct CheckOptions {
  uint64_t seed = 7;
  /// 0 where the cut regroups no sum: then the uncut model's gradients have the same bits.
  double uncut_tolerance = 0;
  /// Stages that hold one tensor: their gradients come in any order.
  double cut_tolerance = 0;
  bool zero_buffering = false;
  /// Something that a step counts, as calls of hooks, and the reference too: reads it and sets it
  /// to 0.
  std::function<int64_t()> take_count = {};
};

/// A pipeline whose steps are compared with the two references of reference.h: outputs, losses and
/// the gradients of all parameters and inputs.
class PipelineCheck {
 public:
  using MakeBatch = std::function<Microbatches()>;

  /// Throws what Pipeline's constructor does.
  PipelineCheck(const TestModel& model, const ScheduleSource& source, CheckOptions options);

  /// The first difference, or nothing. `make_batch` is called for each of the three and gives them
  /// tensors of their own with the same values; weights are equal shares unless it gives some.
  /// Gradients of earlier steps stay where `keeps_grads` says so.
  std::string step(const MakeBatch& make_batch, bool keeps_grads = false);
  /// The same for a batch that the pipeline cuts along its rows.
  std::string step(const at::Tensor& x, const at::Tensor& target, int32_t microbatches);

  Pipeline& pipeline() { return pipeline_; }

 private:
  std::string compare(const StepResult& result, const Microbatches& own,
                      const MakeBatch& make_batch, bool keeps_grads);

  TestModel model_;
  ScheduleSource source_;
  CheckOptions options_;
  Pipeline pipeline_;
  uint64_t steps_ = 0;
  std::vector<at::Tensor> kept_[3];  // gradients of earlier steps: pipeline, cut, uncut
};

}  // namespace stagecraft
