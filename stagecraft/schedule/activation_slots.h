#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "stagecraft/base/index.h"
#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// What activation_slots gives a buffer.
enum class SlotGranularity : uint8_t {
  kStageMicrobatch,  ///< each pair of a stage and a microbatch
  kMicrobatch,       ///< each microbatch, for all chosen stages together
};

/// Buffers for the activations of a rank, which several activations can share. Buffers are numbered
/// from 0. An activation has the same buffer from its F to its B or W.
class ActivationSlots {
 public:
  /// A stage and microbatch, its buffer, and the slots of the rank's list (Slot::position) in which
  /// the buffer holds it, both included: from its F to its B or W. With kMicrobatch, from the first
  /// F to the last B or W of the microbatch on the chosen stages.
  struct Activation {
    StageId stage;
    MicrobatchId microbatch;
    int32_t slot = 0;
    int64_t first = 0;
    int64_t last = 0;

    friend bool operator==(const Activation&, const Activation&) = default;
  };

  /// Ordered by stage, then microbatch.
  explicit ActivationSlots(std::vector<Activation> activations);

  std::span<const Activation> activations() const { return activations_; }
  /// The number of buffers: the most activations that are alive at a time.
  int32_t num_slots() const { return num_slots_; }
  /// ArgumentError for a pair without an activation.
  const Activation& get(StageId stage, MicrobatchId microbatch) const;

  friend bool operator==(const ActivationSlots&, const ActivationSlots&) = default;

 private:
  std::vector<Activation> activations_;
  int32_t num_slots_ = 0;
};

/// Gives every activation of `stages` the lowest buffer that is free: one whose last activation
/// ended in an earlier slot. An I ends no activation, because W reads it, too.
///
/// ArgumentError for a rank that does not exist, no stage, a stage twice or one of a different
/// rank; for an F, I, B or W that occurs twice, a W without an earlier I, a B or W before its F;
/// and for a microbatch below the schedule's number without an F, or without a B or W, on one of
/// the stages.
ActivationSlots activation_slots(const Schedule& schedule, Rank rank,
                                 std::span<const StageId> stages,
                                 SlotGranularity granularity = SlotGranularity::kStageMicrobatch);
/// For all stages of the rank.
ActivationSlots activation_slots(const Schedule& schedule, Rank rank,
                                 SlotGranularity granularity = SlotGranularity::kStageMicrobatch);

}  // namespace stagecraft
