#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "stagecraft/base/deadline.h"
#include "stagecraft/base/index.h"
#include "stagecraft/runtime/progress_mark.h"
#include "stagecraft/runtime/replica_place.h"
#include "stagecraft/runtime/replica_reducer.h"
#include "stagecraft/runtime/tied_weights.h"
#include "stagecraft/stage/stage.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// A reduction after which every replica has all sums.
///
/// Two replicas exchange all their gradients, and both add them. With more replicas, each one sums
/// a part of the parameters and sends the sums to the others, which is less traffic.
///
/// A step may leave gradients local (StepOptions::reduce_grads). The sum over the replicas is then
/// the gradient, and the next step that reduces adds to the local gradients and sends all of it.
/// Gradients of earlier steps that were reduced must count once. Therefore only replica 0 keeps
/// them, and only in the first copy of a tied weight.
class GradReducer final : public ReplicaReducer {
 public:
  /// The arguments must outlive the reducer. With one replica it does nothing.
  GradReducer(Transport& transport, const ReplicaPlace& place, std::span<Stage> stages,
              const TiedWeights& ties, ProgressMark& progress);

  int32_t num_local() const override;
  void start(bool reduces) override;
  void reduce(StageId stage, uint64_t step) override;
  void poll() override;
  void wait(StageId stage, Deadline deadline) override;
  void finish(uint64_t step, Deadline deadline) override;
  void add_earlier() override;
  void abandon() override;

 private:
  /// A parameter. It occurs once, even if several stages of this rank hold it.
  struct Parameter {
    at::Tensor tensor;
    int32_t holders = 0;        // stages of this rank
    int32_t missing = 0;        // holders that are not reduced yet
    int32_t owner = 0;          // the replica that sums it, if there are more than two
    bool is_tied = false;       // a copy of a tied weight
    bool is_first_copy = true;  // the first copy, or no copy at all
    bool is_local = false;      // its gradient is the sum over the replicas
    bool is_included = false;   // `earlier` is part of the step's gradient
    at::Tensor earlier = {};    // its gradient before the step
  };
  /// Whether the gradient before the step is a part of the step's gradient.
  static bool is_included(const Parameter& parameter, bool reduces);
  enum class Phase : uint8_t { kParts, kSums, kDone };
  /// Parameters that are sent together: those that are complete with one stage.
  struct Bundle {
    StageId stage;
    uint64_t step = 0;
    std::vector<std::size_t> parameters = {};
    std::vector<PendingPtr> receives = {};  // of this phase, by replica; null for the own replica
    Phase phase = Phase::kParts;
  };

  bool is_owned_by(const Parameter& parameter, int32_t replica) const {
    return place_.replicas == 2 || parameter.owner == replica;
  }
  static TransferId id(const Bundle& bundle, Phase phase);
  std::vector<std::size_t> owned(const Bundle& bundle, int32_t replica) const;
  void send(const Bundle& bundle, int32_t replica, const std::vector<std::size_t>& which);
  void post_receives(Bundle& bundle);
  bool has_arrived(const Bundle& bundle) const;
  std::vector<at::Tensor> take(Bundle& bundle, int32_t replica,
                               const std::vector<std::size_t>& which, Deadline deadline);
  void add_up(Bundle& bundle, Deadline deadline);
  void take_sums(Bundle& bundle, Deadline deadline);

  Transport& transport_;
  ReplicaPlace place_;
  std::span<Stage> stages_;
  ProgressMark& progress_;
  std::vector<Parameter> parameters_;
  std::vector<std::vector<std::size_t>> by_stage_;  // in the order of stages_
  std::vector<bool> is_reduced_;                    // by stage
  std::vector<Bundle> bundles_;                     // those in flight
  std::vector<PendingPtr> sends_;
  bool is_started_ = false;
  bool reduces_ = true;
};

}  // namespace stagecraft
