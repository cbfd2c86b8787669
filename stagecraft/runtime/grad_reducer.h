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
#include "stagecraft/runtime/tied_weights.h"
#include "stagecraft/stage/stage.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// One rank's part of the reduction of gradients over the replicas. Gradients are added in the
/// order of the replicas, so that all replicas have the same bits. The gradients of a stage are
/// sent when they are complete, while other stages still compute:
///
///   start        sets the gradients of earlier steps aside, or a copy of them if they are local
///   reduce       after the last gradient of a stage: sends the stage's gradients
///   poll         between actions: adds gradients that have arrived, without waiting
///   wait         where the schedule waits for the reduction of a stage
///   finish       waits for the rest; the parameters then have the sums of this step
///   add_earlier  when the step is complete on all ranks: adds the gradients of earlier steps
///
/// Two replicas exchange all their gradients, and both add them. With more replicas, each one sums
/// a part of the parameters and sends the sums to the others, which is less traffic.
///
/// A step may leave gradients local (StepOptions::reduce_grads). The sum over the replicas is then
/// the gradient, and the next step that reduces adds to the local gradients and sends all of it. So
/// that gradients of earlier, reduced steps count once, replica 0 alone keeps them, and of the
/// copies of a tied weight the first one alone.
class GradReducer {
 public:
  /// The arguments must outlive the reducer. With one replica it does nothing.
  GradReducer(Transport& transport, const ReplicaPlace& place, std::span<Stage> stages,
              const TiedWeights& ties, ProgressMark& progress);

  /// The number of parameters whose gradients are local.
  int32_t num_local() const;

  /// Without `reduces`, `reduce` and `finish` send nothing. If it throws, for example because there
  /// is no memory for the copies, nothing has changed.
  void start(bool reduces);
  void reduce(StageId stage, uint64_t step);
  void poll();
  /// Waits until the gradients that were sent with this stage are reduced.
  void wait(StageId stage, Deadline deadline);
  /// Also reduces the stages for which `reduce` was not called.
  void finish(uint64_t step, Deadline deadline);
  void add_earlier();
  /// Instead of finish or add_earlier: restores the gradients of earlier steps.
  void abandon();

 private:
  /// A parameter. It occurs once, even if several stages of this rank hold it.
  struct Parameter {
    at::Tensor tensor;
    int32_t holders = 0;        // stages of this rank
    int32_t missing = 0;        // holders that are not reduced yet
    int32_t owner = 0;          // the replica that sums it, if there are more than two
    bool is_tied = false;       // a copy of a tied weight
    bool is_first_copy = true;  // the first of them, or no copy at all
    bool is_local = false;      // its gradient is the sum over the replicas
    bool is_included = false;   // `earlier` is part of the step's gradient
    at::Tensor earlier = {};    // its gradient before the step
  };
  /// Whether the gradient is a part of what the step leaves local, or reduces.
  static bool is_included(const Parameter& parameter, bool reduces);
  enum class Phase : uint8_t { kParts, kSums, kDone };
  /// Parameters that are sent together: those that are complete with one stage.
  struct Bundle {
    StageId stage;
    uint64_t step = 0;
    std::vector<std::size_t> parameters = {};
    std::vector<PendingPtr> receives = {};  // of the phase, by replica; null for the own replica
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
