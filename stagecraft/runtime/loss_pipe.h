#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/partition/pipe.h"
#include "stagecraft/tree/arguments.h"
#include "stagecraft/tree/tree_spec.h"

namespace stagecraft {

class Pipeline;

/// The number of the output's leaf that is the loss. `spec` is a tree of bools with the structure
/// of the output, True at the loss. Without `spec`, the loss is the whole output if that is a leaf,
/// otherwise the value of the key "loss" of a dict. MetadataError for a different structure,
/// ArgumentError if there is no loss.
std::size_t find_loss(const TreeSpec& output, const std::optional<c10::IValue>& spec = {});

/// One line of the program that trains a pipe once: a stage is called, or its backward, or two
/// gradients of one value are added.
struct PipeStep {
  /// The kind of a line.
  enum class Kind : uint8_t { kForward, kBackward, kAddGrads };

  Kind kind = Kind::kForward;
  StageId stage;
  /// For kBackward: by argument of the stage, the value that its gradient belongs to; nothing for
  /// arguments of the model. For kAddGrads: the value.
  std::vector<std::optional<OutputPort>> targets = {};
  /// For kAddGrads: the stage whose gradient is added.
  StageId from = {};
};

/// A summary of a pipe.
struct PipeInfo {
  std::string graph;  ///< the program, as text
  int32_t num_stages = 0;
  bool has_loss_and_backward = false;
};

PipeInfo info_of(const Pipe& pipe);

/// A pipe whose output contains the loss: forward and backward of every stage as one program. It
/// runs on the calling thread, as a Pipeline of one rank with one microbatch. Copies share that
/// Pipeline, so only one thread at a time may call run. The backward of a stage starts from the
/// gradients of its outputs only: stages share values, not history.
///
///   LossPipe training(pipeline(loss_body(wrapper), {{x, target}, {}}, {.policy = equal_cost(2)}));
///   c10::IValue loss = training.run({x, target});    // parameters have their gradients now
class LossPipe {
 public:
  /// Throws what find_loss throws.
  explicit LossPipe(Pipe pipe, const std::optional<c10::IValue>& loss_spec = {});

  const Pipe& pipe() const { return pipe_; }
  PipeInfo info() const;
  const std::vector<PipeStep>& steps() const { return steps_; }

  /// Returns the output. Gradients are added to those of the parameters, and to those of arguments
  /// that require gradients. They are the gradients of plain autograd. ArgumentError for a loss
  /// that is not a tensor with one element. If a stage fails, throws what the stage threw.
  c10::IValue run(const Args& args, const Kwargs& kwargs = {}) const;

 private:
  Pipe pipe_;
  std::vector<PipeStep> steps_;
  std::shared_ptr<Pipeline> pipeline_;
};

}  // namespace stagecraft
