#include "tests/support/gloo_ranks.h"

#include <exception>
#include <unistd.h>

#include "stagecraft/transport/gloo/addresses.h"

namespace stagecraft {

uint16_t free_port() {
  return detail::port_of(detail::listen_on("127.0.0.1", 0));
}

GlooRanks::GlooRanks(int32_t ranks) : ranks_(ranks) {
  auto listener = detail::listen_on("127.0.0.1", 0);
  port_ = detail::port_of(listener);
  listener_ = listener.release();
}

GlooRanks::~GlooRanks() {
  close(listener_);
}

JoinOptions GlooRanks::options(int32_t i) const {
  JoinOptions options;
  options.rank = Rank(i);
  options.num_ranks = ranks_;
  options.port = port_;
  options.join_timeout = std::chrono::seconds(30);
  if (i == 0) options.listen_fd = listener_;
  if (i != 0) close(listener_);
  return options;
}

std::vector<ProcessEnd> run_gloo_ranks(int32_t ranks, const ProcessTransportOptions& options,
                                       const std::function<void(Transport&)>& body) {
  const GlooRanks world(ranks);
  Processes processes(ranks, [&](int32_t i) {
    auto mine = world.options(i);
    mine.transport = options;
    const auto joined = join_gloo(mine);
    try {
      body(*joined);
    } catch (const std::exception& error) {
      joined->abort({Rank(i), error.what(), std::current_exception()});
      throw;
    }
  });
  return processes.wait();
}

}  // namespace stagecraft
