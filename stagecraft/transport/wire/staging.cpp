#include "stagecraft/transport/wire/staging.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace stagecraft::detail {
namespace {

// A copy of a megabyte takes about as long as these; after them the thread sleeps in between.
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

bool is_on_device(const EncodedValue& value) {
  return std::any_of(value.tensors.begin(), value.tensors.end(),
                     [](const at::Tensor& bytes) { return !bytes.is_cpu(); });
}

at::Tensor empty_pinned(std::size_t bytes) {
  return at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions(at::kByte).pinned_memory(true));
}

Readiness stage(EncodedValue& value, SideStreams& streams) {
  const at::NoGradGuard no_grad;
  Readiness ready;
  const auto mark = [&](const c10::Stream& stream) {
    ready.events_.emplace_back(stream.device_type());
    ready.events_.back().record(stream);
  };
  for (std::size_t i = 0; i < value.tensors.size(); ++i) {
    auto& bytes = value.tensors[i];
    if (!has_streams(bytes.device())) continue;
    const auto producer = current_stream(bytes.device());
    if (value.by_link[i]) {
      mark(producer);
      continue;
    }
    const auto side = streams.of(bytes.device());
    c10::Event produced(side.device_type());
    produced.record(producer);
    produced.block(side);
    const SideStreams::Guard guard(streams, bytes.device());
    auto host = empty_pinned(static_cast<std::size_t>(bytes.numel()));
    host.copy_(bytes, /*non_blocking=*/true);
    mark(side);
    // The memory may be given to others as soon as nobody holds the value.
    value.sources.push_back(bytes);
    bytes = std::move(host);
  }
  return ready;
}

}  // namespace stagecraft::detail
