#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/base/index.h"
#include "stagecraft/partition/pipe.h"
#include "stagecraft/train/adamw.h"
#include "stagecraft/train/checkpoint.h"
#include "stagecraft/train/model_state.h"

namespace stagecraft {

/// The parameters and buffers of a model, AdamW's state of those that are trained in this process,
/// and their conversion to and from a checkpoint.
class TrainingState {
 public:
  /// `is_here`: whether a stage is trained in this process. Throws as AdamW does.
  TrainingState(const Pipe& pipe, const AdamWOptions& options,
                const std::function<bool(StageId)>& is_here);

  /// All of the model, in its order.
  const std::vector<ModelState>& all() const { return all_; }
  /// The states of stages in this process, with the copies in this process.
  const std::vector<ModelState>& here() const { return here_; }
  AdamW& optimizer() { return optimizer_; }

  /// The tensors of a checkpoint for a stage in this process; without `with_moments`, only values.
  std::vector<at::Tensor> tensors_of(StageId stage, bool with_moments = true) const;
  /// The same by section and name. `tensors`: the result of tensors_of on the stage's rank.
  std::map<std::string, NamedTensors> sections_of(StageId stage,
                                                  const std::vector<at::Tensor>& tensors) const;
  /// Sets the values of a stage. `values`: the result of tensors_of, without moments, on the
  /// stage's rank.
  void set_values(StageId stage, const std::vector<at::Tensor>& values);

  /// Restores the states in this process, and the values of other stages. MetadataError, before
  /// anything is changed, if the checkpoint does not belong to this model.
  void restore(const Checkpoint& checkpoint);

 private:
  const AdamW::Moments* find_moments(const std::string& name) const;

  std::vector<ModelState> all_;
  std::vector<ModelState> here_;
  AdamW optimizer_;
};

}  // namespace stagecraft
