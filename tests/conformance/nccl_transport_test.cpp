// The transport over NCCL with a fake that takes the host's memory for a device: all tensors go
// over the device link.

#include <vector>

#include "stagecraft/transport/nccl/connect_nccl.h"
#include "tests/conformance/transport_suite.h"
#include "tests/support/gloo_ranks.h"
#include "tests/support/nccl_ranks.h"

namespace stagecraft {
namespace {

TransportBackend fake_backend() {
  use_fake_nccl();
  TransportBackend backend;
  backend.name = "fake";
  backend.run = [](int32_t ranks, const TransportBackend::Body& body) {
    judge_ends(run_nccl_ranks(ranks, c10::kCPU, {}, body));
  };
  backend.run_owning = [](int32_t ranks, const TransportBackend::OwningBody& body) {
    const GlooRanks world(ranks);
    Processes processes(ranks, [&](int32_t i) {
      auto end = detail::connect_nccl(world.options(i), c10::kCPU);
      body(end);
    });
    judge_ends(processes.wait());
  };
  return backend;
}

SC_JOIN_TRANSPORT_SUITE(Nccl, fake_backend());

}  // namespace
}  // namespace stagecraft
