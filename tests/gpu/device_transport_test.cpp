// What every transport promises, with tensors of the GPU: staged for gloo, over a fake of NCCL
// whose ranks share a GPU, and over NCCL itself, whose ranks take themselves for those of several
// machines.

#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "stagecraft/transport/gloo/join_gloo.h"
#include "tests/conformance/transport_suite.h"
#include "tests/gpu/cuda_values.h"
#include "tests/support/gloo_ranks.h"
#include "tests/support/nccl_ranks.h"

namespace stagecraft {
namespace {

const c10::Device kGpu(c10::kCUDA, 0);

void require_gpu() {
  if (std::getenv("STAGECRAFT_REQUIRE_GPU") != nullptr) FAIL() << "there is no CUDA device";
  GTEST_SKIP() << "there is no CUDA device";
}

TransportBackend gloo_backend() {
  TransportBackend backend;
  backend.name = "gloo";
  backend.run = [](int32_t ranks, const TransportBackend::Body& body) {
    if (!has_gpu()) return require_gpu();
    judge_ends(run_gloo_ranks(ranks, {}, [&](Transport& transport) {
      CudaValues values(transport);
      body(values);
    }));
  };
  backend.run_owning = [](int32_t ranks, const TransportBackend::OwningBody& body) {
    if (!has_gpu()) return require_gpu();
    const GlooRanks world(ranks);
    Processes processes(ranks, [&](int32_t i) {
      std::unique_ptr<Transport> end = std::make_unique<CudaValues>(join_gloo(world.options(i)));
      body(end);
    });
    judge_ends(processes.wait());
  };
  return backend;
}

TransportBackend nccl_backend(const std::string& name, void (*choose)()) {
  TransportBackend backend;
  backend.name = name;
  backend.run = [choose](int32_t ranks, const TransportBackend::Body& body) {
    if (!has_gpu()) return require_gpu();
    choose();
    judge_ends(run_nccl_ranks(ranks, kGpu, {}, [&](Transport& transport) {
      CudaValues values(transport);
      body(values);
    }));
  };
  return backend;
}

SC_JOIN_TRANSPORT_SUITE(Device, gloo_backend(), nccl_backend("fake_nccl", use_fake_nccl),
                        nccl_backend("nccl", use_real_nccl));

}  // namespace
}  // namespace stagecraft
