#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "stagecraft/base/shard_kind.h"
#include "stagecraft/schedule/passes/shard_stages.h"

namespace stagecraft {

struct PlanLayer;

/// The tensors that the replicas of a planned pipeline divide among themselves (docs/sharding.md).
struct PlanSharding {
  int32_t replicas = 1;
  ShardKind kind = ShardKind::kNone;
  /// With kParameters: how many stages of a rank are unsharded at the same time, and how far ahead.
  /// Without a value, the planner chooses.
  std::optional<int32_t> max_active_stages = std::nullopt;
  std::optional<UnshardLookahead> lookahead = std::nullopt;

  bool has_gathers() const { return kind == ShardKind::kParameters; }

  friend bool operator==(const PlanSharding&, const PlanSharding&) = default;
};

/// The memory that a rank holds of the weights, gradients and optimizer state of a layer or a
/// stage.
struct HeldMemory {
  /// Held all the time: the rank's pieces, and the memory that is not divided. With kGradients this
  /// includes whole gradients, because nothing bounds the time until replicas have reduced them.
  double pieces = 0;
  double gathered = 0;   ///< kParameters: whole weights, from UNSHARD to RESHARD
  double gradients = 0;  ///< kParameters: whole gradients, from the first backward until reduced

  double sum() const { return pieces + gathered + gradients; }
};

/// Frozen parameters, the part of `weights` without gradients, are whole with every kind. REQUIRES
/// a layer with the numbers that the kind needs.
HeldMemory held_memory(const PlanLayer& layer, const PlanSharding& sharding);

/// The memory that a rank holds of all its stages.
struct RankHeld {
  double most = 0;   ///< with the largest `active` stages unsharded, and all whole gradients
  double least = 0;  ///< whenever the rank computes, in any schedule
};
/// REQUIRES active >= 1.
RankHeld held_by_rank(std::span<const HeldMemory> stages, int32_t active);

}  // namespace stagecraft
