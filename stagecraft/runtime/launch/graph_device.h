#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "stagecraft/runtime/launch/device_probe.h"

namespace stagecraft::detail {

/// Work that a GraphDevice captured. It must not outlive the device.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  /// Launches the work on the current stream of the calling thread. `seeds` has one entry for each
  /// sequence of random numbers, in the order in which they were opened.
  virtual void replay(std::span<const uint64_t> seeds) = 0;
};

/// A stream that is current while the object lives.
class StreamScope {
 public:
  virtual ~StreamScope() = default;
};

/// A device that captures work instead of executing it, and replays it later. The graphs of a
/// device share one memory pool, so they must be replayed one after the other. Used by one thread
/// at a time.
class GraphDevice {
 public:
  virtual ~GraphDevice() = default;

  virtual c10::Device device() const = 0;

  /// Makes the stream for captures current. It waits for the work of the stream that was current,
  /// and at the end of the scope that stream waits for its work.
  virtual std::unique_ptr<StreamScope> enter() = 0;

  /// Returns memory that torch has cached for the program to the device, for streams and pools that
  /// have none yet.
  virtual void release_unused() {}

  /// Called in the scope of `enter`. Between begin and end the work of this thread, and of
  /// autograd's threads for it, is captured. Tensors that are created are in the graph's pool;
  /// their elements have no meaning before a replay.
  virtual void begin_capture() = 0;
  /// Throws what torch throws if the work could not be captured; then call cancel_capture.
  virtual std::unique_ptr<DeviceGraph> end_capture() = 0;
  /// Ends a capture that failed, in the same scope. The device can capture again.
  virtual void cancel_capture() noexcept = 0;

  /// While capturing: begins a sequence of random numbers. Sequences are numbered from 0 in each
  /// capture.
  virtual void open_sequence() = 0;
  /// While capturing: a generator that continues a sequence. Valid for one draw.
  virtual at::Generator continue_sequence(std::size_t sequence) = 0;
  /// While capturing: the seeds of `count` open sequences from `first` on, int64 on the device.
  /// Error if the device has no such tensor.
  virtual at::Tensor sequence_seeds(std::size_t first, std::size_t count);

  /// Outside of a capture: marks that are set while capturing, at most `limit` of them. The device
  /// reaches them in every replay, and the times are those of the last one. Null if the device has
  /// none.
  virtual std::unique_ptr<DeviceMarks> make_marks(std::size_t limit);
};

/// A graph device for a device of the machine. Null if there is none: a CPU, or a build without
/// CUDA (STAGECRAFT_CUDA).
std::unique_ptr<GraphDevice> find_graph_device(c10::Device device);

using GraphDeviceMaker = std::unique_ptr<GraphDevice> (*)(c10::Device device);
/// For tests: replaces what find_graph_device calls; null restores it.
void set_graph_device_maker(GraphDeviceMaker maker);

/// Defined in the part of the library that is built for CUDA. In a build without CUDA it returns
/// null.
std::unique_ptr<GraphDevice> make_cuda_graph_device(c10::Device device);

}  // namespace stagecraft::detail
