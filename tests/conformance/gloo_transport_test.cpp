#include <memory>
#include <vector>

#include "stagecraft/transport/c10d/process_world.h"
#include "tests/conformance/transport_suite.h"
#include "tests/support/gloo_ranks.h"

namespace stagecraft {
namespace {

// Rethrows what the first that failed threw: others threw because of it.
void judge(const std::vector<ProcessEnd>& ends) {
  const ProcessEnd* first = nullptr;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const auto& end = ends[i];
    EXPECT_NE(end.kind, ProcessEnd::Kind::kFailed) << "on rank " << i << ", see above";
    EXPECT_NE(end.kind, ProcessEnd::Kind::kKilled) << "rank " << i << " died: " << end.message;
    EXPECT_NE(end.kind, ProcessEnd::Kind::kHung) << "rank " << i;
    if (end.kind != ProcessEnd::Kind::kThrew) continue;
    if (first == nullptr || first->type == "PeerError") first = &end;
  }
  if (first != nullptr) rethrow(*first);
}

TransportBackend gloo_backend(const std::string& name, const ProcessTransportOptions& options) {
  TransportBackend backend;
  backend.name = name;
  backend.run = [options](int32_t ranks, const TransportBackend::Body& body) {
    judge(run_gloo_ranks(ranks, options, body));
  };
  backend.run_owning = [options](int32_t ranks, const TransportBackend::OwningBody& body) {
    const GlooRanks world(ranks);
    Processes processes(ranks, [&](int32_t i) {
      auto mine = world.options(i);
      mine.transport = options;
      auto end = ProcessWorld(mine).release();
      body(end);
    });
    judge(processes.wait());
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
