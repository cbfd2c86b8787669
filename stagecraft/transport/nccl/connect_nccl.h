#pragma once

#include <memory>

#include <c10/core/Device.h>

#include "stagecraft/transport/join_options.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft::detail {

/// The GPU of this rank (JoinOptions::device). ArgumentError if there is none.
c10::Device choose_gpu(const JoinOptions& options);

/// Joins a world whose tensors of `device` go over NCCL. Tests also pass the CPU, which their fake
/// NCCL accepts.
std::unique_ptr<Transport> connect_nccl(const JoinOptions& options, c10::Device device);

}  // namespace stagecraft::detail
