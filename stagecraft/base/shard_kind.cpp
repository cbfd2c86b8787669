#include "stagecraft/base/shard_kind.h"

namespace stagecraft {

std::string_view to_string(ShardKind kind) {
  switch (kind) {
    case ShardKind::kNone:
      return "none";
    case ShardKind::kOptimizer:
      return "optimizer";
    case ShardKind::kGradients:
      return "gradients";
    case ShardKind::kParameters:
      return "parameters";
  }
  return "none";
}

std::optional<ShardKind> find_shard_kind(std::string_view name) {
  for (const ShardKind kind :
       {ShardKind::kNone, ShardKind::kOptimizer, ShardKind::kGradients, ShardKind::kParameters}) {
    if (name == to_string(kind)) return kind;
  }
  return std::nullopt;
}

}  // namespace stagecraft
