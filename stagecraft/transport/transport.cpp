#include "stagecraft/transport/transport.h"

namespace stagecraft {

void Transport::connect(std::span<const Rank> /*peers*/, Deadline /*deadline*/) {}

// NOLINTNEXTLINE(performance-unnecessary-value-param): transports that can tell keep it.
void Transport::publish(std::function<RankProgress()> /*tell*/) {}

std::vector<HeardProgress> Transport::progress() const {
  return std::vector<HeardProgress>(static_cast<std::size_t>(num_ranks()));
}

}  // namespace stagecraft
