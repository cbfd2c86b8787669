#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/base/deadline.h"
#include "stagecraft/base/index.h"
#include "stagecraft/runtime/replica_place.h"
#include "stagecraft/schedule/placement.h"
#include "stagecraft/shard/parameter_shards.h"
#include "stagecraft/stage/stage.h"
#include "stagecraft/stage/tied_weight.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// One rank's part of summing the gradients of tied weights. The unsplit model adds the
/// contributions to a tied weight in a different order, so its gradients differ in their last bits.
/// For the same bits, send the weight itself through a port (Ports::connect).
class TiedWeights {
 public:
  /// The arguments must outlive it; `shards` may be null. If it shards gradients, the pieces of the
  /// copies are summed: copies have the same pieces. ArgumentError for an unknown stage or name, a
  /// group with fewer than two stages, or copies of different shapes on this rank.
  TiedWeights(Transport& transport, const Placement& placement, const ReplicaPlace& place,
              std::span<Stage> stages, const std::vector<TiedWeight>& groups,
              const ParameterShards* shards = nullptr);

  /// Whether the tensor is a copy of a tied weight.
  bool is_copy(const at::Tensor& parameter) const;
  /// Whether the tensor is the copy of a tied weight with the lowest stage, or no copy at all.
  bool is_first_copy(const at::Tensor& parameter) const;

  /// The other ranks with a copy of a weight of this rank; a rank may occur several times.
  std::vector<Rank> peers() const;

  /// Before a step: sets the gradients of earlier steps aside. With several replicas GradReducer
  /// has done so, and what it left is a part of the step's gradients.
  void start();
  /// After the last action: sends the gradients of the step. `finish` calls it if it was not
  /// called. A thread that runs several ranks calls it for all of them before it finishes the
  /// first.
  void send(uint64_t step);
  /// After the last action: exchanges the gradients of the step and adds those of earlier steps.
  void finish(uint64_t step, std::chrono::nanoseconds timeout);
  /// Called instead of finish: restores the gradients of earlier steps.
  void abandon();

 private:
  struct Copy {
    at::Tensor parameter;
    at::Tensor earlier;  // its gradient before the step
    at::Tensor sum;      // of the step's gradients, over all copies
  };
  struct Holder {
    StageId stage;
    Rank rank;
    std::size_t copy = SIZE_MAX;  // on this rank
  };
  struct Group {
    std::vector<Holder> holders;  // last stage first
    std::vector<Copy> copies;     // those of this rank
    std::size_t number = 0;       // among all groups
  };

  void sum_grads(Group& group, const Holder& to, uint64_t step, Deadline deadline);
  static TransferId id(const Group& group, const Holder& from, const Holder& to, uint64_t step);

  Transport& transport_;
  bool has_replicas_;
  std::vector<Group> groups_;  // those with a copy on this rank
  std::vector<PendingPtr> sends_;
  bool is_started_ = false;
  bool is_sent_ = false;
};

}  // namespace stagecraft
