#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/function.h>

namespace stagecraft {

/// The current history of a tensor. It does not call grad_fn(), which can create the history of a
/// view, or throw.
torch::autograd::Node* history_of(const at::Tensor& tensor);

/// Finds what autograd does without the dispatcher, which a graph of operators would lose: custom
/// functions and hooks. Results are texts for messages.
class HistoryCheck {
 public:
  /// Notes the history that an operator gave its result.
  void note(const torch::autograd::Node* node);

  /// The problem with one node. `is_new`: it is not the node that the operator created.
  std::optional<std::string> find_problem(torch::autograd::Node& node, bool is_new) const;
  /// The first problem in the history of the tensors among these values.
  std::optional<std::string> find_problem(const std::vector<c10::IValue>& values) const;

 private:
  std::unordered_set<const torch::autograd::Node*> known_functions_;
};

/// Finds hooks that are registered on parameters from now on.
class ParameterHooks {
 public:
  ParameterHooks() = default;
  ~ParameterHooks() { take_new(); }
  ParameterHooks(const ParameterHooks&) = delete;
  ParameterHooks& operator=(const ParameterHooks&) = delete;

  void watch(const std::string& name, const at::Tensor& parameter);
  /// Removes the new hooks. Returns the name of the first parameter that had one.
  std::optional<std::string> take_new();

 private:
  struct Watched {
    std::string name;
    at::Tensor tensor;
    std::size_t hooks = 0;
  };
  std::vector<Watched> watched_;
};

}  // namespace stagecraft
