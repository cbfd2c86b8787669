#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace stagecraft {

/// Remembers tensors and random generators as they are, and puts them back.
class SavedState {
 public:
  SavedState() = default;
  ~SavedState();
  SavedState(const SavedState&) = delete;
  SavedState& operator=(const SavedState&) = delete;

  /// The first time counts.
  void save(const at::Tensor& tensor);
  void save(const at::Generator& generator);
  /// The generator that operators on that device draw from by default.
  void save_default_generator(c10::Device device);

  /// Puts everything back and forgets it.
  void restore();

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;
  std::vector<std::pair<at::Generator, at::Tensor>> generators_;
};

}  // namespace stagecraft
