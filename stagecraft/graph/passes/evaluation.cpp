#include "stagecraft/graph/passes/evaluation.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <set>
#include <string>
#include <string_view>

#include "stagecraft/graph/op_types.h"
#include "stagecraft/graph/passes/run_pass.h"

namespace stagecraft {

namespace {

/// Operators that behave differently in training, and the argument that enables it.
struct Switch {
  std::string_view op;
  std::string_view argument;
};
constexpr std::array<Switch, 26> kSwitches = {{
    {"aten::dropout", "train"},
    {"aten::dropout_", "train"},
    {"aten::native_dropout", "train"},
    {"aten::feature_dropout", "train"},
    {"aten::feature_dropout_", "train"},
    {"aten::alpha_dropout", "train"},
    {"aten::alpha_dropout_", "train"},
    {"aten::feature_alpha_dropout", "train"},
    {"aten::feature_alpha_dropout_", "train"},
    {"aten::batch_norm", "training"},
    {"aten::native_batch_norm", "training"},
    {"aten::cudnn_batch_norm", "training"},
    {"aten::miopen_batch_norm", "training"},
    {"aten::_batch_norm_impl_index", "training"},
    {"aten::_native_batch_norm_legit", "training"},
    {"aten::_native_batch_norm_legit_functional", "training"},
    {"aten::rrelu", "training"},
    {"aten::rrelu_", "training"},
    {"aten::rrelu_with_noise", "training"},
    {"aten::rrelu_with_noise_functional", "training"},
    {"aten::lstm", "train"},
    {"aten::gru", "train"},
    {"aten::rnn_tanh", "train"},
    {"aten::rnn_relu", "train"},
    {"aten::instance_norm", "use_input_stats"},
    {"aten::scaled_dot_product_attention", "dropout_p"},
}};

constexpr std::string_view kCount = "num_batches_tracked";

void switch_off(GraphNode& node) {
  for (Graph& branch : node.branches) branch = for_evaluation(branch);
  const auto* found = std::ranges::find(kSwitches, node.op.name, &Switch::op);
  const c10::FunctionSchema* schema = find_schema(node.op);
  if (found == kSwitches.end() || schema == nullptr) return;
  // A normalisation without running statistics uses those of the batch in evaluation too.
  const bool is_norm =
      node.op.name.ends_with("_norm") || node.op.name.find("_norm_") != std::string::npos;
  bool has_statistics = !is_norm;
  for (std::size_t i = 0; i < node.arguments.size(); ++i) {
    if (schema->arguments()[i].name() == "running_mean") {
      has_statistics = !node.arguments[i].is_none();
    }
  }
  for (std::size_t i = 0; i < node.arguments.size(); ++i) {
    if (schema->arguments()[i].name() != found->argument || !has_statistics) continue;
    const c10::IValue* fixed = node.arguments[i].fixed_value();
    if (fixed == nullptr) continue;
    // Nodes are changed, never removed: positions of splits are the same in both graphs.
    if (fixed->isBool()) node.arguments[i] = Argument::fixed(false);
    if (fixed->isDouble()) node.arguments[i] = Argument::fixed(0.0);
  }
}

// Batch normalisation counts the batches that it was trained on, by an addition to a buffer. The
// pass makes this addition add 0.
void stop_counting(GraphParts& parts) {
  std::set<ValueId> counts;
  for (const GraphState& state : parts.states) {
    const std::string& name = parts.values[state.value].name;
    if (name == kCount || name.ends_with("." + std::string(kCount))) counts.insert(state.value);
  }
  for (GraphNode& node : parts.nodes) {
    if (node.op.name != "aten::add" && node.op.name != "aten::add_") continue;
    const ValueId* self = node.arguments[0].value();
    // alpha = 0: the node adds nothing, but stays.
    if (self != nullptr && counts.contains(*self)) node.arguments[2] = Argument::fixed(0);
  }
}

}  // namespace

Graph for_evaluation(const Graph& graph) {
  return run_pass(graph.parts(), [](GraphParts parts) {
    for (GraphNode& node : parts.nodes) switch_off(node);
    stop_counting(parts);
    return parts;
  });
}

}  // namespace stagecraft
