#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// The bit of a compute action or transfer among those of its stage and microbatch.
constexpr uint8_t type_bit(ActionType type) {
  return static_cast<uint8_t>(1U << static_cast<unsigned>(type));
}

/// A few bits for each stage and microbatch of a schedule.
class PairFlags {
 public:
  /// ArgumentError, beginning with `who`, the caller, when the table would be far larger than the
  /// schedule, because few of its stages and microbatches have an action.
  PairFlags(const Schedule& schedule, std::string_view who);

  uint8_t& at(StageId stage, MicrobatchId microbatch) {
    return flags_[stage.position() * columns_ + microbatch.position()];
  }

 private:
  std::size_t columns_;
  std::vector<uint8_t> flags_;
};

}  // namespace stagecraft
