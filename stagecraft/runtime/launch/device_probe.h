#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Event.h>

namespace stagecraft::detail {

/// Points in the work of a device, with the times at which the device reached them. Used by one
/// thread at a time.
class DeviceMarks {
 public:
  virtual ~DeviceMarks() = default;
  /// Forgets all marks. Their memory is kept.
  virtual void clear() = 0;
  /// Marks the end of what was launched so far on the current stream of the calling thread, without
  /// waiting. Marks are numbered from 0.
  virtual std::size_t set() = 0;
  virtual std::size_t size() const = 0;
  /// Whether the device has reached a mark. Does not wait. Throws what the device reports.
  virtual bool is_reached(std::size_t mark) = 0;
  /// Waits until the device has reached all marks. Returns their times on the steady clock of the
  /// host, in nanoseconds, accurate to about 20 microseconds. Throws what the device reports.
  virtual std::vector<int64_t> read() = 0;
};

/// The queries of the runtime to a device that is not the CPU.
class DeviceProbe {
 public:
  /// The statistics of torch's allocator, in bytes.
  struct Memory {
    int64_t allocated = 0;
    int64_t peak_allocated = 0;  ///< since reset_peak
    int64_t reserved = 0;        ///< taken from the device: allocated, and cached for later
    int64_t peak_reserved = 0;   ///< since reset_peak
  };

  virtual ~DeviceProbe() = default;
  virtual std::unique_ptr<DeviceMarks> make_marks() = 0;
  virtual Memory memory() = 0;
  /// Bytes that no process has reserved; -1: not known. Slower than memory().
  virtual int64_t free_memory() = 0;
  virtual void reset_peak() = 0;
  /// Throws what the device reports about work that was launched earlier. Does not wait.
  virtual void check() = 0;
  /// Returns cached memory to the device.
  virtual void release_unused() = 0;
};

/// Waits for events that were recorded with timing, on one device, and returns their times as
/// DeviceMarks::read does.
std::vector<int64_t> read_events(std::span<const c10::Event> events);

/// The probe of a device. Null for the CPU.
std::unique_ptr<DeviceProbe> find_device_probe(c10::Device device);

using DeviceProbeMaker = std::unique_ptr<DeviceProbe> (*)(c10::Device device);
/// For tests: replaces what find_device_probe calls; null restores it.
void set_device_probe_maker(DeviceProbeMaker maker);

}  // namespace stagecraft::detail
