#include "stagecraft/runtime/launch/device_probe.h"

#include <atomic>
#include <chrono>
#include <exception>

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace stagecraft::detail {

namespace {

std::atomic<DeviceProbeMaker> replaced_probe_maker = nullptr;

int64_t steady_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Events of the device.
class EventMarks final : public DeviceMarks {
 public:
  explicit EventMarks(c10::Device device) : device_(device), guard_(device.type()) {}

  void clear() override { size_ = 0; }
  std::size_t size() const override { return size_; }

  bool is_reached(std::size_t mark) override { return events_[mark].query(); }

  std::size_t set() override {
    if (size_ == events_.size()) {
      events_.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    }
    events_[size_].record(guard_.getStream(device_));
    return size_++;
  }

  std::vector<int64_t> read() override { return read_events(std::span(events_).first(size_)); }

 private:
  c10::Device device_;
  c10::impl::VirtualGuardImpl guard_;
  std::vector<c10::Event> events_;
  std::size_t size_ = 0;
};

// Not every version of torch that the library supports has getMemoryInfo.
template <typename Allocator>
int64_t free_memory_of(Allocator& allocator, c10::DeviceIndex device) {
  if constexpr (requires { allocator.getMemoryInfo(device); }) {
    return static_cast<int64_t>(allocator.getMemoryInfo(device).first);
  }
  return -1;
}

class AllocatorProbe final : public DeviceProbe {
 public:
  explicit AllocatorProbe(c10::Device device) : device_(device) {}

  std::unique_ptr<DeviceMarks> make_marks() override {
    return std::make_unique<EventMarks>(device_);
  }

  Memory memory() override {
    constexpr std::size_t kAll = 0;  // of torch's kinds of pools
    const auto stats = c10::getDeviceAllocator(device_.type())->getDeviceStats(device_.index());
    return {.allocated = stats.allocated_bytes[kAll].current,
            .peak_allocated = stats.allocated_bytes[kAll].peak,
            .reserved = stats.reserved_bytes[kAll].current,
            .peak_reserved = stats.reserved_bytes[kAll].peak};
  }

  int64_t free_memory() override {
    try {
      return free_memory_of(*c10::getDeviceAllocator(device_.type()), device_.index());
    } catch (const std::exception&) {  // a device that has failed
      return -1;
    }
  }

  void reset_peak() override {
    c10::getDeviceAllocator(device_.type())->resetPeakStats(device_.index());
  }

  void check() override {
    c10::Event now(device_.type());
    now.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
    now.query();
  }

  void release_unused() override { c10::getDeviceAllocator(device_.type())->emptyCache(); }

 private:
  c10::Device device_;
};

}  // namespace

std::vector<int64_t> read_events(std::span<const c10::Event> events) {
  std::vector<int64_t> times;
  if (events.empty()) return times;
  for (const c10::Event& event : events) event.synchronize();
  // An event that the host waits for aligns the two clocks.
  const c10::Device device = events.front().device();
  c10::Event now(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  now.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  now.synchronize();
  const int64_t at = steady_now();
  for (const c10::Event& event : events) {
    times.push_back(at - static_cast<int64_t>(event.elapsedTime(now) * 1e6));
  }
  return times;
}

std::unique_ptr<DeviceProbe> find_device_probe(c10::Device device) {
  if (const DeviceProbeMaker maker = replaced_probe_maker.load()) return maker(device);
  if (!device.is_cuda()) return nullptr;
  if (!device.has_index()) device = c10::impl::VirtualGuardImpl(device.type()).getDevice();
  return std::make_unique<AllocatorProbe>(device);
}

void set_device_probe_maker(DeviceProbeMaker maker) {
  replaced_probe_maker.store(maker);
}

}  // namespace stagecraft::detail
