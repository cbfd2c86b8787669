#include "stagecraft/stage/derived_seeds.h"

#include <cstddef>

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "stagecraft/stage/random_generators.h"
#include "stagecraft/stage/random_scope.h"

namespace stagecraft {

at::Tensor derived_seeds(uint64_t base, std::span<const uint64_t> places, c10::Device device) {
  detail::CapturedDraws* const capture = detail::find_captured_draws();
  if (!device.is_cpu() && !device.has_index()) {
    device = c10::impl::VirtualGuardImpl(device.type()).getDevice();
  }
  // A captured step is replayed with other seeds, so the program must read memory that a replay
  // writes.
  if (capture != nullptr && capture->device() == device && !places.empty()) {
    std::size_t first = 0;
    for (std::size_t i = 0; i < places.size(); ++i) {
      const std::size_t sequence =
          capture->open({.seed = mix_seed(base, 0, 0, places[i]),
                         .derivation = {{.base = base, .place = places[i]}}});
      if (i == 0) first = sequence;
    }
    // A copy: compiled programs expect aligned memory.
    return capture->seeds_of(first, places.size()).clone();
  }
  const at::TensorOptions options = at::TensorOptions(at::kCPU).dtype(at::kLong);
  const at::Tensor host = at::empty({static_cast<int64_t>(places.size())},
                                    device.is_cpu() ? options : options.pinned_memory(true));
  auto* const seeds = static_cast<uint64_t*>(host.mutable_data_ptr());
  for (std::size_t i = 0; i < places.size(); ++i) seeds[i] = mix_seed(base, 0, 0, places[i]);
  // Pinned, so that the copy does not wait. torch does not use the memory again before the copy is
  // complete.
  return device.is_cpu() ? host : host.to(device, /*non_blocking=*/true);
}

}  // namespace stagecraft
