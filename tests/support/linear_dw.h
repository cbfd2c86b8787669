#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace stagecraft {

/// A linear layer whose backward makes the gradient of its input alone and notes what those of its
/// parameters need, for StageOptions::weight_work.
class LinearDw {
 public:
  LinearDw(at::Tensor weight, at::Tensor bias);

  at::Tensor forward(const at::Tensor& x);
  /// Adds to the parameters' gradients what the backwards since the last call noted.
  std::function<void()> take_work();

  struct Note {
    at::Tensor input;
    at::Tensor grad;
  };
  using Notes = std::vector<Note>;

 private:
  at::Tensor weight_;
  at::Tensor bias_;
  std::shared_ptr<Notes> notes_ = std::make_shared<Notes>();
};

}  // namespace stagecraft
