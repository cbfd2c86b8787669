#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <c10/core/Device.h>

#include "stagecraft/transport/join_options.h"
#include "stagecraft/transport/transport.h"
#include "tests/support/processes.h"

namespace stagecraft {

/// From now on NCCL is a library of the tests', which needs no GPU; for this process and those that
/// it starts. NCCL's own, until then.
void use_fake_nccl();
void use_real_nccl();

/// The number of communicators that this process has made with the fake library.
int32_t num_communicators();

/// Runs `body` on every rank of a new world of processes. A rank that throws aborts the world.
std::vector<ProcessEnd> run_nccl_ranks(int32_t ranks, c10::Device device,
                                       const ProcessTransportOptions& options,
                                       const std::function<void(Transport&)>& body);

}  // namespace stagecraft
