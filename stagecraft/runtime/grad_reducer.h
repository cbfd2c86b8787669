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
#include "stagecraft/stage/stage.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// One rank's part in adding up the gradients that a step gave on all replicas, in the order of the
/// replicas, so that all have the same bits. A stage's gradients set out when they are complete,
/// while other stages still compute:
///
///   start   sets the gradients of earlier steps aside
///   reduce  of each stage, after its last gradient: sends them
///   poll    now and then: adds up what has come; never waits
///   finish  waits for the rest; the parameters have the sums, of this step alone
///   add_earlier  when the step is complete everywhere
///
/// Two replicas send each other all they have and both add up. Of more, each adds up a part of the
/// parameters and sends the others the sums: that is less to send.
class GradReducer {
 public:
  /// All must outlive it. With one replica nothing is done.
  GradReducer(Transport& transport, const ReplicaPlace& place, std::span<Stage> stages,
              ProgressMark& progress);

  void start();
  void reduce(StageId stage, uint64_t step);
  void poll();
  /// Stages that were not reduced are.
  void finish(uint64_t step, Deadline deadline);
  void add_earlier();
  /// Instead of finish or add_earlier: the gradients as they were.
  void abandon();

 private:
  /// A parameter, once, however many stages of this rank hold it.
  struct Parameter {
    at::Tensor tensor;
    int32_t holders = 0;      // stages of this rank
    int32_t missing = 0;      // of them, those that are not reduced yet
    int32_t owner = 0;        // the replica that adds it up, of three and more
    at::Tensor earlier = {};  // its gradient before the step
  };
  enum class Phase : uint8_t { kParts, kSums, kDone };
  /// What sets out together: what is complete with one stage.
  struct Bundle {
    StageId stage;
    uint64_t step = 0;
    std::vector<std::size_t> parameters = {};
    std::vector<PendingPtr> receives = {};  // of the phase, by replica; null for this one
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
  std::vector<Bundle> bundles_;                     // those under way
  std::vector<PendingPtr> sends_;
  bool is_started_ = false;
};

}  // namespace stagecraft
