#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/stage/forward_state.h"
#include "stagecraft/stage/stage_input.h"
#include "stagecraft/tree/arguments.h"

namespace stagecraft {

/// A forward whose graph was not kept: its arguments and state, so that it can run again before its
/// backward, and its outputs, whose history begins at the end of the stage.
class Recomputation {
 public:
  Recomputation(Arguments arguments, ForwardState state);

  const Arguments& arguments() const { return arguments_; }
  const ForwardState& state() const { return state_; }
  /// Whether a tensor among the arguments was changed in place since the forward.
  bool is_changed() const;

  /// Drops the buffers that the forward did not change, and returns the others.
  std::vector<at::Tensor> keep_changed_buffers() { return state_.keep_changed_buffers(); }

  /// Returns the output with tensors that require gradients. Their gradients are collected here.
  c10::IValue cut(const c10::IValue& output);
  std::span<const StageInput> ends() const { return ends_; }
  std::size_t num_outputs() const { return outputs_.size(); }
  /// The collected gradients, one for each output, in the form of grad_value.h.
  std::vector<c10::IValue> take_output_grads() const;

 private:
  // Which of `ends_` each tensor of an output is, or -1.
  struct Output {
    bool is_tensor = false;
    std::vector<int32_t> ends;
  };

  at::Tensor cut(const at::Tensor& tensor, Output& output);

  Arguments arguments_;
  std::vector<uint32_t> versions_;
  ForwardState state_;
  std::vector<StageInput> ends_;
  std::vector<Output> outputs_;
};

}  // namespace stagecraft
