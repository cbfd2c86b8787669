#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace stagecraft {

/// What the replicas of a pipeline divide among themselves. Each kind includes those before it.
/// Gradients, weights and losses have the same bits with every kind.
enum class ShardKind : uint8_t {
  kNone,        ///< every replica holds everything
  kOptimizer,   ///< the optimizer's state
  kGradients,   ///< gradients, too: REDUCE_GRAD leaves each replica its piece of the sums
  kParameters,  ///< weights, too: UNSHARD gathers those of a stage, RESHARD releases them
};

/// "none", "optimizer", "gradients" or "parameters".
std::string_view to_string(ShardKind kind);
std::optional<ShardKind> find_shard_kind(std::string_view name);

}  // namespace stagecraft
