#include "stagecraft/graph/capture/history.h"

#include <cstddef>
#include <exception>
#include <string_view>
#include <typeinfo>

#include <fmt/format.h>

#include <c10/util/Type.h>
#include <torch/csrc/autograd/variable.h>

namespace stagecraft {

namespace {

using torch::autograd::Node;

/// The name of a custom autograd function, or of a node class that is not torch's; empty for other
/// nodes.
std::string custom_function(const Node& node) {
  // autograd does not mark custom functions. Their nodes are CppNode<Function>; those of operators
  // are classes of torch.
  const std::string type = c10::demangle(typeid(node).name());
  const std::size_t found = type.find("CppNode<");
  if (found == std::string::npos) return type.starts_with("torch::") ? std::string() : type;
  const std::size_t begin = found + std::string_view("CppNode<").size();
  return type.substr(begin, type.rfind('>') - begin);
}

bool has_hooks(Node& node) {
  return !node.tensor_pre_hooks().empty() || !node.retains_grad_hooks().empty() ||
         !node.pre_hooks().empty() || !node.post_hooks().empty();
}

/// The number of hooks of a parameter. Removed hooks count, because torch keeps their places in the
/// list.
std::size_t num_hooks(const at::Tensor& parameter) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(parameter);
  if (meta == nullptr || meta->cpp_hooks_list_ == nullptr) return 0;
  return meta->cpp_hooks_list_->size();
}

}  // namespace

Node* history_of(const at::Tensor& tensor) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  return meta == nullptr ? nullptr : meta->grad_fn_.get();
}

void HistoryCheck::note(const Node* node) {
  if (node != nullptr && !custom_function(*node).empty()) known_functions_.insert(node);
}

std::optional<std::string> HistoryCheck::find_problem(Node& node, bool is_new) const {
  const std::string function = is_new ? custom_function(node) : std::string();
  // An operator may use a custom function inside. A node that an operator has made is captured with
  // the operator.
  if (!function.empty() && !known_functions_.contains(&node)) {
    return fmt::format(
        "the custom autograd function {} would lose its backward; register it as an operator, "
        "which is captured whole",
        function);
  }
  // Hooks on parameters are allowed, because they may be older than the capture. Nodes of
  // parameters have no outputs.
  if (node.num_outputs() == 0 || !has_hooks(node)) return std::nullopt;
  return fmt::format(
      "a hook was registered on a result of {} inside the forward; a graph has no place for it",
      node.name());
}

std::optional<std::string> HistoryCheck::find_problem(
    const std::vector<c10::IValue>& values) const {
  std::vector<Node*> open;
  std::unordered_set<Node*> seen;
  auto visit = [&](Node* node) {
    if (node != nullptr && seen.insert(node).second) open.push_back(node);
  };
  for (const c10::IValue& value : values) {
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    try {
      visit(value.toTensor().grad_fn().get());
    } catch (const std::exception&) {
      visit(history_of(value.toTensor()));  // a view that autograd cannot follow any more
    }
  }
  while (!open.empty()) {
    Node* node = open.back();
    open.pop_back();
    if (auto problem = find_problem(*node, true)) return problem;
    for (const torch::autograd::Edge& edge : node->next_edges()) visit(edge.function.get());
  }
  return std::nullopt;
}

void ParameterHooks::watch(const std::string& name, const at::Tensor& parameter) {
  watched_.push_back({name, parameter, num_hooks(parameter)});
}

std::optional<std::string> ParameterHooks::take_new() {
  std::optional<std::string> found;
  for (Watched& watched : watched_) {
    for (std::size_t hook = watched.hooks; hook < num_hooks(watched.tensor); ++hook) {
      if (!found) found = watched.name;
      // Removed, because a capture leaves the model as it was.
      watched.tensor.remove_hook(static_cast<unsigned>(hook));
    }
  }
  return found;
}

}  // namespace stagecraft
