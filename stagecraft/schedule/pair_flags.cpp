#include "stagecraft/schedule/pair_flags.h"

#include "stagecraft/base/check.h"

namespace stagecraft {

PairFlags::PairFlags(const Schedule& schedule, std::string_view who)
    : columns_(static_cast<std::size_t>(schedule.num_microbatches())) {
  const std::size_t pairs = static_cast<std::size_t>(schedule.num_stages()) * columns_;
  require<ArgumentError>(pairs / 64 <= static_cast<std::size_t>(schedule.num_actions()) + 1024,
                         "{}: only {} actions for {} stages and {} microbatches", who,
                         schedule.num_actions(), schedule.num_stages(), columns_);
  flags_.resize(pairs, 0);
}

}  // namespace stagecraft
