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

/// The parameters and buffers of a model, what AdamW remembers of those that are trained in this
/// process, and their way into a checkpoint and back.
class TrainingState {
 public:
  /// `is_here`: whether a stage is trained in this process. Throws as AdamW does.
  TrainingState(const Pipe& pipe, const AdamWOptions& options,
                const std::function<bool(StageId)>& is_here);

  /// All of the model, in its order.
  const std::vector<ModelState>& all() const { return all_; }
  /// Those of the stages here, and of their copies those here.
  const std::vector<ModelState>& here() const { return here_; }
  AdamW& optimizer() { return optimizer_; }

  /// What a checkpoint holds of a stage that is here; its values alone where `with_moments` is not
  /// set.
  std::vector<at::Tensor> tensors_of(StageId stage, bool with_moments = true) const;
  /// The same by section and name; `tensors`: what tensors_of gave where the stage is.
  std::map<std::string, NamedTensors> sections_of(StageId stage,
                                                  const std::vector<at::Tensor>& tensors) const;
  /// Takes over the values of a stage; `values`: tensors_of without moments, where the stage is.
  void set_values(StageId stage, const std::vector<at::Tensor>& values);

  /// Takes over all that is here, and the values of other stages. MetadataError, before anything is
  /// changed, for one that is not of this model.
  void restore(const Checkpoint& checkpoint);

 private:
  const AdamW::Moments* find_moments(const std::string& name) const;

  std::vector<ModelState> all_;
  std::vector<ModelState> here_;
  AdamW optimizer_;
};

}  // namespace stagecraft
