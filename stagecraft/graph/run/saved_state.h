#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace stagecraft {

/// Saves tensors and random generators, and restores them.
class SavedState {
 public:
  SavedState() = default;
  ~SavedState();
  SavedState(const SavedState&) = delete;
  SavedState& operator=(const SavedState&) = delete;

  /// Saves the tensor's elements. Further calls for the same tensor have no effect.
  void save(const at::Tensor& tensor);
  void save(const at::Generator& generator);
  /// Saves the state of the device's default generator.
  void save_default_generator(c10::Device device);

  /// Restores everything and forgets it.
  void restore();

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;
  std::vector<std::pair<at::Generator, at::Tensor>> generators_;
};

}  // namespace stagecraft
