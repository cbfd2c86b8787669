#include "tests/support/fake_device_probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <vector>

namespace stagecraft {
namespace {

std::atomic<int64_t> mark_cost = 0;  // 0: there are no fake devices
std::atomic<int64_t> resets = 0;
std::atomic<int64_t> releases = 0;
std::atomic<int64_t> reached = INT64_MAX;
std::atomic<const char*> failure = nullptr;
std::atomic<const char*> late_failure = nullptr;
std::atomic<const char*> start_failure = nullptr;

detail::DeviceProbe::Memory& shared_memory() {
  static detail::DeviceProbe::Memory memory;
  return memory;
}

int64_t host_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class FakeMarks final : public detail::DeviceMarks {
 public:
  void clear() override {
    if (const char* message = start_failure.exchange(nullptr)) throw std::runtime_error(message);
    times_.clear();
  }
  std::size_t size() const override { return times_.size(); }
  bool is_reached(std::size_t mark) override {
    throw_fake_failure();
    return static_cast<int64_t>(mark) < reached;
  }
  std::size_t set() override {
    throw_fake_failure();
    const int64_t host = host_now();
    times_.push_back(times_.empty() ? host : std::max(times_.back(), host) + mark_cost);
    return times_.size() - 1;
  }
  std::vector<int64_t> read() override {
    throw_fake_failure();
    return times_;
  }

 private:
  std::vector<int64_t> times_;
};

class FakeGraphMarks final : public detail::DeviceMarks {
 public:
  void clear() override { size_ = 0; }
  std::size_t size() const override { return size_; }
  bool is_reached(std::size_t /*mark*/) override { return true; }
  std::size_t set() override { return size_++; }
  std::vector<int64_t> read() override {
    const int64_t begin = host_now();
    std::vector<int64_t> times;
    for (std::size_t i = 0; i < size_; ++i) {
      times.push_back(begin + static_cast<int64_t>(i) * mark_cost);
    }
    return times;
  }

 private:
  std::size_t size_ = 0;
};

class FakeProbe final : public detail::DeviceProbe {
 public:
  std::unique_ptr<detail::DeviceMarks> make_marks() override {
    return std::make_unique<FakeMarks>();
  }
  Memory memory() override { return shared_memory(); }
  int64_t free_memory() override { return 1 << 20; }
  void reset_peak() override { ++resets; }
  void check() override {
    throw_fake_failure();
    if (const char* message = late_failure.load()) throw std::runtime_error(message);
  }
  void release_unused() override { ++releases; }
};

}  // namespace

void throw_fake_failure() {
  if (const char* message = failure.load()) throw std::runtime_error(message);
}

FakeDeviceProbes::FakeDeviceProbes(int64_t cost) {
  mark_cost = cost;
  resets = 0;
  releases = 0;
  detail::set_device_probe_maker([](c10::Device) -> std::unique_ptr<detail::DeviceProbe> {
    return std::make_unique<FakeProbe>();
  });
}

FakeDeviceProbes::~FakeDeviceProbes() {
  detail::set_device_probe_maker(nullptr);
  mark_cost = 0;
  failure = nullptr;
  late_failure = nullptr;
  start_failure = nullptr;
  reached = INT64_MAX;
  shared_memory() = {};
}

void FakeDeviceProbes::set_memory(const detail::DeviceProbe::Memory& memory) {
  shared_memory() = memory;
}

void FakeDeviceProbes::set_failure(const char* message) {
  failure = message;
}

void FakeDeviceProbes::set_late_failure(const char* message) {
  late_failure = message;
}

void FakeDeviceProbes::fail_one_start(const char* message) {
  start_failure = message;
}

int64_t FakeDeviceProbes::num_resets() {
  return resets;
}

int64_t FakeDeviceProbes::num_releases() {
  return releases;
}

void FakeDeviceProbes::set_reached(int64_t marks) {
  reached = marks;
}

std::unique_ptr<detail::DeviceMarks> make_fake_graph_marks() {
  return mark_cost > 0 ? std::make_unique<FakeGraphMarks>() : nullptr;
}

}  // namespace stagecraft
