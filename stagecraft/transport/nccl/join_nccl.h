#pragma once

#include <memory>

#include "stagecraft/transport/join_options.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// Joins a world whose ranks are processes with a GPU each. GPU tensors go over NCCL, without
/// passing the host. Everything else goes over gloo, as in join_gloo. A tensor that arrives over
/// NCCL is on the GPU of this rank.
///
/// NCCL is loaded at run time: the file in STAGECRAFT_NCCL_LIBRARY, otherwise libnccl.so.2, which
/// torch's CUDA wheels bring along. `options.device` becomes the calling thread's current device.
///
/// Throws as join_gloo does, and ArgumentError if there is no NCCL or no GPU, or with NCCL's
/// message if it cannot connect, for instance when two ranks have the same GPU. An error of one
/// rank reaches the others as PeerError.
std::unique_ptr<Transport> join_nccl(const JoinOptions& options);

}  // namespace stagecraft
