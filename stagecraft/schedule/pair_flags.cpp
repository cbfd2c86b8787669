#include "stagecraft/schedule/pair_flags.h"

#include "stagecraft/base/check.h"

namespace stagecraft {

PairFlags::PairFlags(const Schedule& schedule, std::string_view who)
    : columns_(static_cast<std::size_t>(schedule.num_microbatches())) {
  const std::size_t pairs = static_cast<std::size_t>(schedule.num_stages()) * columns_;
  require<ArgumentError>(pairs / 64 <= static_cast<std::size_t>(schedule.num_actions()) + 1024,
                         "{}: {} stages and {} microbatches with only {} actions", who,
                         schedule.num_stages(), columns_, schedule.num_actions());
  flags_.resize(pairs, 0);
}

}  // namespace stagecraft
