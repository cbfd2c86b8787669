#include "tests/support/nccl_ranks.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "stagecraft/transport/nccl/connect_nccl.h"
#include "tests/support/gloo_ranks.h"

namespace stagecraft {

void use_fake_nccl() {
  setenv("STAGECRAFT_NCCL_LIBRARY", SC_FAKE_NCCL_LIBRARY, 1);
}

void use_real_nccl() {
  unsetenv("STAGECRAFT_NCCL_LIBRARY");
}

int32_t num_communicators() {
  int32_t (*count)() = nullptr;
  void* const library = dlopen(getenv("STAGECRAFT_NCCL_LIBRARY"), RTLD_NOW | RTLD_NOLOAD);
  void* const found = library == nullptr ? nullptr : dlsym(library, "sc_fake_nccl_communicators");
  std::memcpy(&count, &found, sizeof(found));
  return count == nullptr ? -1 : count();
}

std::vector<ProcessEnd> run_nccl_ranks(int32_t ranks, c10::Device device,
                                       const ProcessTransportOptions& options,
                                       const std::function<void(Transport&)>& body) {
  const GlooRanks world(ranks);
  Processes processes(ranks, [&](int32_t i) {
    // So that NCCL takes processes of one machine for those of several, which may have one GPU.
    setenv("NCCL_HOSTID", ("rank" + std::to_string(i)).c_str(), 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    // The fake lets streams stand still, and those that share a connection to the GPU stand
    // together.
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    auto mine = world.options(i);
    mine.transport = options;
    const auto end = detail::connect_nccl(mine, device);
    try {
      body(*end);
    } catch (const std::exception& error) {
      end->abort({Rank(i), error.what(), std::current_exception()});
      throw;
    }
  });
  return processes.wait();
}

}  // namespace stagecraft
