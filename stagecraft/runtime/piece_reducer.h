#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/base/deadline.h"
#include "stagecraft/base/index.h"
#include "stagecraft/runtime/progress_mark.h"
#include "stagecraft/runtime/replica_reducer.h"
#include "stagecraft/shard/parameter_shards.h"
#include "stagecraft/shard/reduce_scatter.h"
#include "stagecraft/stage/stage.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// A reduction after which every replica has its pieces of the sums, as the gradients of
/// ShardUnit::piece. The gradients of whole parameters are released as soon as they are sent. Steps
/// that do not reduce leave them whole and local, beside those of pieces that earlier steps
/// reduced.
class PieceReducer final : public ReplicaReducer {
 public:
  /// The arguments must outlive the reducer. The kind of shards is kGradients or kParameters.
  PieceReducer(Transport& transport, ParameterShards& shards, std::span<Stage> stages,
               ProgressMark& progress);

  int32_t num_local() const override;
  /// ArgumentError if a parameter has a whole gradient that no step of this reducer has left.
  void start(bool reduces) override;
  void reduce(StageId stage, uint64_t step) override;
  void poll() override;
  void wait(StageId stage, Deadline deadline) override;
  void finish(uint64_t step, Deadline deadline) override;
  void add_earlier() override;
  void abandon() override;

 private:
  /// A unit in a step.
  struct Reduction {
    ShardUnit* unit = nullptr;
    std::size_t missing = 0;  // holders that are not reduced yet
    std::optional<ReduceScatter> scatter = std::nullopt;
    bool is_taken = false;  // the sums are in the piece's gradient
    at::Tensor earlier = {};
    std::vector<bool> had_grad = {};
    bool is_local = false;               // the last step left whole gradients
    std::vector<at::Tensor> local = {};  // those gradients, by parameter
  };

  void begin(Reduction& reduction, uint64_t step);
  void take(Reduction& reduction);
  std::vector<at::Tensor> copies_of_grads(const Reduction& reduction) const;
  static void release_grads(const ShardUnit& unit);

  Transport& transport_;
  ParameterShards& shards_;
  std::span<Stage> stages_;
  ProgressMark& progress_;
  std::vector<Reduction> reductions_;  // by unit
  std::vector<bool> is_reduced_;       // by stage
  bool is_started_ = false;
  bool reduces_ = true;
};

}  // namespace stagecraft
