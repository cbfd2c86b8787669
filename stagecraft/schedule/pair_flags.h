#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// The bit of a type among those that have a microbatch.
constexpr uint16_t type_bit(ActionType type) {
  return static_cast<uint16_t>(1U << static_cast<unsigned>(type));
}
static_assert(kMicrobatchTypes <= 16);

/// A few bits for each stage and microbatch of a schedule.
class PairFlags {
 public:
  /// ArgumentError, which begins with `who`, the caller, if the table would be far larger than the
  /// schedule, because few of its stages and microbatches have an action.
  PairFlags(const Schedule& schedule, std::string_view who);

  uint16_t& at(StageId stage, MicrobatchId microbatch) {
    return flags_[stage.position() * columns_ + microbatch.position()];
  }

 private:
  std::size_t columns_;
  std::vector<uint16_t> flags_;
};

}  // namespace stagecraft
