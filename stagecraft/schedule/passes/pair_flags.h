#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// A few bits for each stage and microbatch of a schedule.
class PairFlags {
 public:
  /// ArgumentError, beginning with the name of the pass, when the schedule names so few of its
  /// stages and microbatches that the table would dwarf it.
  PairFlags(const Schedule& schedule, std::string_view pass);

  uint8_t& at(StageId stage, MicrobatchId microbatch) {
    return flags_[static_cast<std::size_t>(stage.value()) * columns_ + microbatch.value()];
  }

 private:
  std::size_t columns_;
  std::vector<uint8_t> flags_;
};

}  // namespace stagecraft
