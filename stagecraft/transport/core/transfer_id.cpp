#include "stagecraft/transport/core/transfer_id.h"

#include <fmt/format.h>

namespace stagecraft {
namespace {

const char* name_of(Direction direction) {
  switch (direction) {
    case Direction::kForward:
      return "values";
    case Direction::kBackward:
      return "gradients";
    case Direction::kResult:
      return "results";
    case Direction::kTiedWeight:
      return "gradients of a tied weight";
    case Direction::kReplica:
      return "gradients of a replica";
    case Direction::kWeights:
      return "sharded weights";
    case Direction::kGradPieces:
      return "sharded gradients";
  }
  return "transfer";
}

}  // namespace

std::string to_string(const TransferId& id) {
  return fmt::format("{} of stage {} for stage {}, microbatch {}, step {}", name_of(id.direction),
                     id.from.value(), id.to.value(), id.microbatch.value(), id.step);
}

}  // namespace stagecraft
