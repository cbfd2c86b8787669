#include <memory>
#include <vector>

#include "stagecraft/transport/gloo/join_gloo.h"
#include "tests/conformance/transport_suite.h"
#include "tests/support/gloo_ranks.h"

namespace stagecraft {
namespace {

TransportBackend gloo_backend(const std::string& name, const ProcessTransportOptions& options) {
  TransportBackend backend;
  backend.name = name;
  backend.run = [options](int32_t ranks, const TransportBackend::Body& body) {
    judge_ends(run_gloo_ranks(ranks, options, body));
  };
  backend.run_owning = [options](int32_t ranks, const TransportBackend::OwningBody& body) {
    const GlooRanks world(ranks);
    Processes processes(ranks, [&](int32_t i) {
      auto mine = world.options(i);
      mine.transport = options;
      auto end = join_gloo(mine);
      body(end);
    });
    judge_ends(processes.wait());
  };
  return backend;
}

ProcessTransportOptions with_checksums() {
  ProcessTransportOptions options;
  options.use_checksums = true;
  return options;
}

SC_JOIN_TRANSPORT_SUITE(Gloo, gloo_backend("default", {}),
                        gloo_backend("checksums", with_checksums()));

}  // namespace
}  // namespace stagecraft
