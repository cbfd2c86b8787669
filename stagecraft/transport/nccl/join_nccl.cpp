#include "stagecraft/transport/nccl/join_nccl.h"

#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "stagecraft/base/check.h"
#include "stagecraft/transport/gloo/join.h"
#include "stagecraft/transport/nccl/connect_nccl.h"
#include "stagecraft/transport/nccl/nccl_link.h"
#include "stagecraft/transport/wire/wire_transport.h"

namespace stagecraft {

c10::Device detail::choose_gpu(const JoinOptions& options) {
  const bool is_built = c10::impl::hasDeviceGuardImpl(c10::kCUDA);
  const int count = is_built ? c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount() : 0;
  require<ArgumentError>(
      count > 0, "a world over NCCL needs a GPU, but {}",
      is_built ? "this process sees none" : "this torch was built without CUDA: use a CUDA wheel");
  const auto& asked = options.device;
  require<ArgumentError>(
      !asked || (asked->is_cuda() && asked->has_index() && asked->index() < count),
      "expected one of this process's {} GPUs for a world over NCCL, got {}", count,
      asked ? asked->str() : "");
  if (asked) return *asked;
  const c10::Device current = c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice();
  if (current.index() != 0) return current;
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(options.local_rank % count)};
}

std::unique_ptr<Transport> detail::connect_nccl(const JoinOptions& options, c10::Device device) {
  const auto library = NcclLibrary::load();
  const auto deadline = Deadline::after(options.join_timeout);
  JoinOptions meeting = options;
  meeting.fingerprint.emplace_back("NCCL", library->version());
  auto byte_transport = connect_gloo(meeting);
  auto link = std::make_unique<NcclLink>(library, byte_transport->rank(),
                                         byte_transport->num_ranks(), device, options.join_timeout);
  auto transport = std::make_unique<WireTransport>(std::move(byte_transport), options.transport,
                                                   std::move(link));
  transport->begin_link(deadline);
  return transport;
}

std::unique_ptr<Transport> join_nccl(const JoinOptions& options) {
  const c10::Device device = detail::choose_gpu(options);
  c10::impl::VirtualGuardImpl(c10::kCUDA).setDevice(device);
  return detail::connect_nccl(options, device);
}

}  // namespace stagecraft
