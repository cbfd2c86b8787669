#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "stagecraft/base/shard_kind.h"
#include "stagecraft/schedule/passes/shard_stages.h"

namespace stagecraft {

struct PlanLayer;

/// What the replicas of a planned pipeline divide among themselves (docs/sharding.md).
struct PlanSharding {
  int32_t replicas = 1;
  ShardKind kind = ShardKind::kNone;
  /// Of kParameters: how many stages of a rank are unsharded at once, and how far ahead. Nothing:
  /// the planner chooses.
  std::optional<int32_t> max_active_stages = std::nullopt;
  std::optional<UnshardLookahead> lookahead = std::nullopt;

  bool has_gathers() const { return kind == ShardKind::kParameters; }

  friend bool operator==(const PlanSharding&, const PlanSharding&) = default;
};

/// What a rank holds of the weights, gradients and optimizer state of a layer or a stage.
struct HeldMemory {
  /// All the time: the rank's pieces, and what is not divided. With kGradients whole gradients are
  /// among it: nothing bounds when replicas have reduced them.
  double pieces = 0;
  double gathered = 0;   ///< kParameters: whole weights, from UNSHARD to RESHARD
  double gradients = 0;  ///< kParameters: whole gradients, from the first backward until reduced

  double sum() const { return pieces + gathered + gradients; }
};

/// Frozen parameters, those of `weights` that no gradient belongs to, are whole with every kind.
/// REQUIRES a layer that has what the kind needs.
HeldMemory held_memory(const PlanLayer& layer, const PlanSharding& sharding);

/// What a rank holds of all its stages.
struct RankHeld {
  double most = 0;   ///< with the largest `active` stages unsharded, and all whole gradients
  double least = 0;  ///< whenever the rank computes, in any schedule
};
/// REQUIRES active >= 1.
RankHeld held_by_rank(std::span<const HeldMemory> stages, int32_t active);

}  // namespace stagecraft
