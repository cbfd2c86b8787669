#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/base/index.h"
#include "stagecraft/runtime/step.h"
#include "stagecraft/schedule/schedule.h"
#include "tests/support/test_model.h"

namespace stagecraft {

/// In which order each stage makes the gradients of its parameters: microbatches by stage.
using WeightOrder = std::vector<std::vector<MicrobatchId>>;
WeightOrder weight_order(const Schedule& schedule);

/// What one step of training gives besides the parameters' .grad.
struct Trained {
  std::vector<c10::IValue> outputs = {};      ///< by microbatch, without history
  std::vector<at::Tensor> losses = {};        ///< by microbatch
  std::vector<at::Tensor> added_losses = {};  ///< by microbatch, undefined where there is none
};

/// Which random numbers a step draws.
struct Draws {
  uint64_t seed = 0;
  uint64_t step = 0;  ///< training steps completed before this one
};

/// Two references for a step of a pipeline. Both add to the .grad of the parameters and of leaf
/// tensors among the batch's inputs; `batch` has its weights.
///
/// The cut loop: the same stages, with full backwards, one after another in this thread. What
/// several stages read has its gradients added last stage first. Microbatch by microbatch in the
/// order in which each stage made its weight gradients in the pipeline.
Trained train_cut(const TestModel& model, const Microbatches& batch, const WeightOrder& order,
                  const Draws& draws);

/// The uncut model: all stages in one graph of plain autograd for each microbatch. It knows neither
/// Stage nor its borders; parameters add up their microbatches in the same order.
Trained train_uncut(const TestModel& model, const Microbatches& batch, const WeightOrder& order,
                    const Draws& draws);

/// The first difference between two tensors, values or lists of either, as text that begins with
/// `what`; empty when there is none. Bit for bit without a tolerance; with one, absolute plus
/// relative to the largest element. Undefined equals undefined alone.
std::string difference(const std::string& what, const at::Tensor& a, const at::Tensor& b,
                       double tolerance = 0);
std::string difference(const std::string& what, const std::vector<at::Tensor>& a,
                       const std::vector<at::Tensor>& b, double tolerance = 0);
std::string difference(const std::string& what, const c10::IValue& a, const c10::IValue& b);
/// Outputs and losses, bit for bit, and added losses up to their last bits: they are summed by
/// rank.
std::string difference(const Trained& a, const Trained& b);

}  // namespace stagecraft
