#pragma once

#include <cstdint>
#include <string>

#include <c10/core/Device.h>

namespace stagecraft {

/// While it lives, pipelines on the CPU find a graph device: one that records the operators of a
/// capture, undoes what they changed, overwrites what they made, and executes them again, on the
/// same memory, when the graph is replayed.
class FakeGraphDevices {
 public:
  FakeGraphDevices();
  ~FakeGraphDevices();
  FakeGraphDevices(const FakeGraphDevices&) = delete;
  FakeGraphDevices& operator=(const FakeGraphDevices&) = delete;

  /// An operator that cannot be captured; the default is the one that reads a value to the host.
  void refuse(const std::string& name);
  /// The number of graphs that exist.
  static int64_t num_graphs();
};

}  // namespace stagecraft
