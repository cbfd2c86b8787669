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

/// A tensor's history as it stands: asking a view for it may make it anew, or throw.
torch::autograd::Node* history_of(const at::Tensor& tensor);

/// Looks for what autograd does behind the back of the dispatcher, so that a graph of operators
/// would lose it: custom functions, and hooks. Answers are texts for messages.
class HistoryCheck {
 public:
  /// What an operator gave its result: it belongs to the operator.
  void note(const torch::autograd::Node* node);

  /// What is wrong with one node; `is_new`: it is not the one that the operator gave.
  std::optional<std::string> find_problem(torch::autograd::Node& node, bool is_new) const;
  /// The same for all that the tensors among these values were made of.
  std::optional<std::string> find_problem(const std::vector<c10::IValue>& values) const;

 private:
  std::unordered_set<const torch::autograd::Node*> known_functions_;
};

/// Finds hooks that are put on parameters from now on.
class ParameterHooks {
 public:
  ParameterHooks() = default;
  ~ParameterHooks() { take_new(); }
  ParameterHooks(const ParameterHooks&) = delete;
  ParameterHooks& operator=(const ParameterHooks&) = delete;

  void watch(const std::string& name, const at::Tensor& parameter);
  /// Takes the new ones away again. The name of the first parameter that had one, or nothing.
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
