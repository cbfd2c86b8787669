#pragma once

#include <cstdint>

#include "stagecraft/runtime/launch/device_probe.h"

namespace stagecraft {

/// While it lives, stages on the CPU have a device to ask: one that needs a fixed time from mark to
/// mark, begins when the host has set the mark before, has the memory that a test sets
/// as allocated, and 1 MiB free.
class FakeDeviceProbes {
 public:
  /// The time from mark to mark, in nanoseconds.
  explicit FakeDeviceProbes(int64_t cost);
  ~FakeDeviceProbes();
  FakeDeviceProbes(const FakeDeviceProbes&) = delete;
  FakeDeviceProbes& operator=(const FakeDeviceProbes&) = delete;

  static void set_memory(const detail::DeviceProbe::Memory& memory);
  /// From now on every call of the device throws this; null: no more.
  static void set_failure(const char* message);
  /// The device does not get further than this number of marks.
  static void set_reached(int64_t marks);
  /// How often reset_peak and release_unused were called.
  static int64_t num_resets();
  static int64_t num_releases();
  /// A failure that no mark meets, only a check: of a kernel that runs after the last mark was set.
  static void set_late_failure(const char* message);
  /// The next step of one rank throws this before its first action.
  static void fail_one_start(const char* message);
};

/// Throws what FakeDeviceProbes::set_failure was given.
void throw_fake_failure();

/// Marks in a captured step of such a device, which reaches them when they are read. Null if no
/// FakeDeviceProbes lives.
std::unique_ptr<detail::DeviceMarks> make_fake_graph_marks();

}  // namespace stagecraft
