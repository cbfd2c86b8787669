#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/base/index.h"
#include "stagecraft/partition/pipe.h"
#include "stagecraft/shard/parameter_shards.h"
#include "stagecraft/train/adamw.h"
#include "stagecraft/train/checkpoint.h"
#include "stagecraft/train/model_state.h"

namespace stagecraft {

/// The parameters and buffers of a model, AdamW's state of those that are trained in this process,
/// and their conversion to and from a checkpoint.
class TrainingState {
 public:
  /// `is_here`: whether a stage is trained in this process. `shards` are those of this rank, or
  /// null. Throws as AdamW does.
  TrainingState(const Pipe& pipe, const AdamWOptions& options,
                const std::function<bool(StageId)>& is_here,
                std::shared_ptr<ParameterShards> shards = nullptr);

  /// All states of the model, in its order.
  const std::vector<ModelState>& all() const { return all_; }
  /// The states of stages in this process, with the copies in this process. For sharded parameters,
  /// the copies are this replica's pieces.
  const std::vector<ModelState>& here() const { return here_; }
  AdamW& optimizer() { return optimizer_; }
  ParameterShards* shards() const { return shards_.get(); }

  /// Called after the steps of an update: gives the pieces of `here` their gradients.
  void attach_grads();
  /// Releases all gradients.
  void zero_grad();
  /// Bytes of the optimizer's state.
  int64_t optimizer_bytes() const;

  /// The tensors of a checkpoint for a stage in this process; without `with_moments`, only values.
  std::vector<at::Tensor> tensors_of(StageId stage, bool with_moments = true) const;
  /// The same by section and name. `tensors`: the result of tensors_of on the stage's rank.
  std::map<std::string, NamedTensors> sections_of(StageId stage,
                                                  const std::vector<at::Tensor>& tensors) const;
  /// This replica's part of a checkpoint of sharded parameters. Replica 0 also adds the tensors
  /// that are whole.
  void fill_part(Checkpoint& checkpoint, const Checkpoint::Part& part,
                 const std::function<bool(StageId)>& is_here) const;
  /// Sets the values of a stage. `values`: the result of tensors_of, without moments, on the
  /// stage's rank.
  void set_values(StageId stage, const std::vector<at::Tensor>& values);

  /// Releases the memory of parameters of other stages, unless something in this process shares it.
  /// set_values gives a stage its memory again.
  void release_others(const Pipe& pipe, const std::function<bool(StageId)>& is_here);

  /// Restores the states in this process, and the values of other stages. MetadataError, before
  /// anything is changed, if the checkpoint does not belong to this model.
  void restore(const Checkpoint& checkpoint);

 private:
  /// A piece of a parameter: an entry of `here`.
  struct Piece {
    ShardUnit* unit = nullptr;
    std::size_t segment = 0;
    at::Tensor tensor;  // a copy of the state
  };
  static std::vector<ModelState> sharded(std::vector<ModelState> states,
                                         const ParameterShards& shards, std::vector<Piece>& pieces);
  const AdamW::Moments* find_moments(const std::string& name) const;
  const ModelState* find_here(const std::string& name) const;

  std::shared_ptr<ParameterShards> shards_;
  std::vector<Piece> pieces_;
  std::vector<ModelState> all_;
  std::vector<ModelState> here_;
  AdamW optimizer_;
  std::set<const c10::TensorImpl*> released_;  // parameters of other stages
};

}  // namespace stagecraft
