#pragma once

#include <memory>
#include <optional>

#include <c10/core/Device.h>

#include "stagecraft/transport/c10d/process_world.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// A world whose ranks are processes with a GPU each. Tensors of the GPU go over NCCL from one to
/// the other without passing the host; everything else, and tensors of other devices, over gloo as
/// in ProcessWorld. A tensor that comes over NCCL is on the GPU of this rank, on whichever it was.
///
/// NCCL is loaded at run time: STAGECRAFT_NCCL_LIBRARY, or else libnccl.so.2, which torch's wheels
/// with CUDA bring along.
class NcclWorld {
 public:
  /// Meets the other ranks as ProcessWorld does, with the same errors, and connects with each over
  /// NCCL. ArgumentError where there is no NCCL or no GPU, and with NCCL's words where it cannot
  /// connect, for instance when two ranks have the same GPU; what one rank throws reaches the
  /// others as PeerError.
  ///
  /// `device`: this rank's, which becomes the calling thread's current one. Without it: the
  /// thread's current one if that is not the first of the machine, otherwise number local_rank,
  /// counted round.
  explicit NcclWorld(const ProcessWorldOptions& options,
                     std::optional<c10::Device> device = std::nullopt);
  ~NcclWorld();
  NcclWorld(NcclWorld&&) noexcept;
  NcclWorld& operator=(NcclWorld&&) noexcept;

  c10::Device device() const { return device_; }
  /// This process's end. ArgumentError once it was released.
  Transport& transport();
  /// Hands it over; the world forgets it.
  std::unique_ptr<Transport> release();

 private:
  c10::Device device_ = c10::kCPU;
  std::unique_ptr<Transport> transport_;
};

}  // namespace stagecraft
