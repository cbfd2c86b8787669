#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace stagecraft {

/// The state that a forward depends on, besides its arguments and parameters: autocast of this
/// thread, the elements of buffers that forwards change and, if it draws from them, the random
/// generators of the process.
class ForwardState {
 public:
  struct What {
    c10::Device device = c10::kCPU;
    bool has_generators = false;           ///< the default generators of the CPU and of the device
    std::vector<at::Tensor> buffers = {};  ///< those that forwards change
  };

  /// Saves the current state.
  explicit ForwardState(const What& what);

  /// Drops the buffers that still have the same elements, and returns the others.
  std::vector<at::Tensor> keep_changed_buffers();

  /// Saves the same parts of the current state.
  ForwardState now() const;
  void put_back() const;

 private:
  struct Autocast {
    c10::DeviceType device_type = c10::kCPU;
    bool is_enabled = false;
    c10::ScalarType dtype = c10::ScalarType::BFloat16;
  };

  ForwardState() = default;
  static Autocast autocast_of(c10::DeviceType type);

  std::vector<Autocast> autocast_;
  std::vector<std::pair<at::Generator, at::Tensor>> generators_;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;
};

/// Restores a state while it lives, and the previous state at its end.
class ForwardStateScope {
 public:
  explicit ForwardStateScope(const ForwardState& state);
  ~ForwardStateScope();
  ForwardStateScope(const ForwardStateScope&) = delete;
  ForwardStateScope& operator=(const ForwardStateScope&) = delete;

 private:
  ForwardState outside_;
};

}  // namespace stagecraft
