#include "stagecraft/transport/device/staging.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "stagecraft/base/assert.h"

namespace stagecraft::detail {
namespace {

// The thread polls this many times without sleeping, which takes about as long as copying a
// megabyte. Afterwards it sleeps between two polls.
constexpr int kBusyTurns = 200;
constexpr auto kNap = std::chrono::microseconds(20);

}  // namespace

bool Readiness::is_ready() const {
  return std::all_of(events_.begin(), events_.end(),
                     [](const c10::Event& event) { return event.query(); });
}

void Readiness::pause(int turn) {
  if (turn < kBusyTurns) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(kNap);
  }
}

Readiness copy_to_host(std::vector<at::Tensor>& tensors, const std::vector<bool>& by_link,
                       std::vector<at::Tensor>& sources, SideStreams& streams) {
  SC_ASSERT(tensors.size() == by_link.size());
  const at::NoGradGuard no_grad;
  Readiness ready;
  const auto mark = [&](const c10::Stream& stream) {
    ready.events_.emplace_back(stream.device_type());
    ready.events_.back().record(stream);
  };
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    auto& bytes = tensors[i];
    if (!has_streams(bytes.device())) continue;
    const auto producer = current_stream(bytes.device());
    // The device link sends from the tensor's own memory, so an event after the producer is all
    // that it needs.
    if (by_link[i]) {
      mark(producer);
      continue;
    }
    const auto side = streams.of(bytes.device());
    c10::Event produced(side.device_type());
    produced.record(producer);
    // On a side stream, so that the copy does not delay what the rank computes next.
    produced.block(side);
    const SideStreams::Guard guard(streams, bytes.device());
    // torch caches pinned memory.
    auto host = at::empty({bytes.numel()}, at::TensorOptions(at::kByte).pinned_memory(true));
    host.copy_(bytes, /*non_blocking=*/true);
    mark(side);
    // torch may reuse the memory of a tensor as soon as no reference to it is left.
    sources.push_back(bytes);
    bytes = std::move(host);
  }
  return ready;
}

}  // namespace stagecraft::detail
