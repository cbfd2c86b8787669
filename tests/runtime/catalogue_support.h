#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/runtime/schedule_source.h"
#include "stagecraft/runtime/step.h"
#include "stagecraft/tree/arguments.h"
#include "tests/support/models.h"

namespace stagecraft {

/// A step of the uncut model on the whole batch.
struct WholeStep {
  at::Tensor output;
  at::Tensor loss;
  std::vector<at::Tensor> grads;  ///< by parameters_of the stages
};
/// By plain autograd; takes the gradients away.
WholeStep train_whole(const models::WholeModel& model, const Args& args, const Kwargs& kwargs,
                      const at::Tensor& target);

/// The tolerance is that of a different order of summation: 1e-6 of the largest element.
std::string difference(const StepResult& result, const std::vector<at::Tensor>& grads,
                       const WholeStep& expected);

/// A step as one pipeline, and as a program a rank: both against the whole model, and against each
/// other, bit for bit.
void train_everywhere(const models::WholeModel& model, const ScheduleSource& source,
                      const Args& args, const Kwargs& kwargs, const at::Tensor& target,
                      int32_t microbatches);

}  // namespace stagecraft
