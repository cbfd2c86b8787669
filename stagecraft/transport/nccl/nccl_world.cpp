#include "stagecraft/transport/nccl/nccl_world.h"

#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "stagecraft/base/check.h"
#include "stagecraft/transport/c10d/join.h"
#include "stagecraft/transport/nccl/nccl_transport.h"

namespace stagecraft {
namespace {

c10::Device choose_device(int32_t local_rank, std::optional<c10::Device> asked) {
  const bool is_built = c10::impl::hasDeviceGuardImpl(c10::kCUDA);
  const int count = is_built ? c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount() : 0;
  require<ArgumentError>(
      count > 0, "a world over NCCL needs a GPU, and {}",
      is_built ? "this process sees none" : "this torch is without CUDA: use a wheel that has it");
  require<ArgumentError>(
      !asked || (asked->is_cuda() && asked->has_index() && asked->index() < count),
      "a world over NCCL needs one of this process's {} GPUs, got {}", count,
      asked ? asked->str() : "");
  const c10::impl::VirtualGuardImpl cuda(c10::kCUDA);
  c10::Device device = asked ? *asked : cuda.getDevice();
  if (!asked && device.index() == 0) {
    device = c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(local_rank % count));
  }
  cuda.setDevice(device);
  return device;
}

}  // namespace

NcclWorld::NcclWorld(const ProcessWorldOptions& options, std::optional<c10::Device> device) {
  const auto library = detail::NcclLibrary::load();
  device_ = choose_device(options.local_rank, device);
  const auto deadline = Deadline::after(options.join_timeout);
  ProcessWorldOptions meeting = options;
  meeting.facts.emplace_back("NCCL", library->version());
  transport_ = std::make_unique<detail::NcclTransport>(detail::join(meeting), library, device_,
                                                       options.transport, deadline);
}

NcclWorld::~NcclWorld() = default;
NcclWorld::NcclWorld(NcclWorld&&) noexcept = default;
NcclWorld& NcclWorld::operator=(NcclWorld&&) noexcept = default;

Transport& NcclWorld::transport() {
  require<ArgumentError>(transport_ != nullptr, "NcclWorld: this rank's end was released");
  return *transport_;
}

std::unique_ptr<Transport> NcclWorld::release() {
  transport();
  return std::move(transport_);
}

}  // namespace stagecraft
