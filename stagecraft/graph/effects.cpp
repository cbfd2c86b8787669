#include "stagecraft/graph/effects.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>

#include "stagecraft/base/check.h"
#include "stagecraft/graph/op_types.h"

namespace stagecraft {

namespace {

/// Operators that change running statistics if the flag is set.
struct RunningStatistics {
  std::string_view op;
  std::string_view flag;
};
// The schemas of these operators do not declare that they write to running_mean and running_var.
constexpr std::array<RunningStatistics, 6> kRunningStatistics = {{
    {"aten::batch_norm", "training"},
    {"aten::native_batch_norm", "training"},
    {"aten::cudnn_batch_norm", "training"},
    {"aten::miopen_batch_norm", "training"},
    {"aten::_batch_norm_impl_index", "training"},
    {"aten::instance_norm", "use_input_stats"},
}};

bool is_set(const c10::FunctionSchema& schema, const std::vector<Argument>& arguments,
            std::string_view flag) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue* fixed = arguments[i].fixed_value();
    if (schema.arguments()[i].name() == flag && fixed != nullptr && fixed->isBool()) {
      return fixed->toBool();
    }
  }
  return true;
}

}  // namespace

std::vector<std::size_t> written_arguments(const c10::FunctionSchema& schema,
                                           const std::vector<Argument>& arguments) {
  std::vector<std::size_t> written;
  const auto* statistics =
      std::ranges::find(kRunningStatistics, schema.name(), &RunningStatistics::op);
  const bool has_statistics =
      statistics != kRunningStatistics.end() && is_set(schema, arguments, statistics->flag);
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const bool is_written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    if (is_written || (has_statistics && argument.name().starts_with("running_"))) {
      written.push_back(i);
    }
  }
  return written;
}

void check_states_apart(const GraphParts& parts) {
  std::unordered_map<int32_t, std::vector<std::string>> sharing;
  std::unordered_map<const void*, std::string> trained;
  for (const GraphState& state : parts.states) {
    const GraphValue& value = parts.values[state.value];
    if (value.memory >= 0) sharing[value.memory].push_back(value.name);
    if (!state.tensor.requires_grad() || !state.tensor.has_storage()) continue;
    // A copy on a device, or in a file, would separate the two: each would get its own gradient and
    // its own update.
    const auto [first, is_new] = trained.try_emplace(
        state.tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl(), value.name);
    if (!is_new) {
      throw ArgumentError(fmt::format(
          "%{} and %{} share memory, and both are trained: they cannot be copied. Register one "
          "tensor under both names",
          first->second, value.name));
    }
  }
  for (const GraphNode& node : parts.nodes) {
    for (const std::size_t i : written_arguments(*find_schema(node.op), node.arguments)) {
      for_each_value(node.arguments[i], [&](ValueId value) {
        const auto found = sharing.find(parts.values[value].memory);
        require<ArgumentError>(
            found == sharing.end() || found->second.size() < 2,
            "{} changes memory that %{} and %{} share: they cannot be copied", node.name,
            found == sharing.end() ? "" : found->second[0],
            found == sharing.end() || found->second.size() < 2 ? "" : found->second[1]);
      });
    }
  }
}

bool is_random(const c10::OperatorName& op) {
  const auto found = c10::Dispatcher::singleton().findSchema(op);
  return found && found->hasTag(at::Tag::nondeterministic_seeded);
}

namespace {

/// Whether an argument disables the random numbers of an operator.
bool is_switched_off(const GraphNode& node) {
  const c10::FunctionSchema* schema = find_schema(node.op);
  for (std::size_t i = 0; schema != nullptr && i < node.arguments.size(); ++i) {
    const c10::IValue* fixed = node.arguments[i].fixed_value();
    const std::string& name = schema->arguments()[i].name();
    if (fixed == nullptr) continue;
    if ((name == "train" || name == "training") && fixed->isBool() && !fixed->toBool()) return true;
    if (name == "dropout_p" && fixed->isDouble() && fixed->toDouble() == 0) return true;
  }
  return false;
}

}  // namespace

bool is_random(const GraphNode& node) {
  // The tag belongs to the operator. Dropout in evaluation has it, too, and draws nothing.
  if (is_random(node.op)) return !is_switched_off(node);
  return std::ranges::any_of(node.branches, [](const Graph& branch) {
    return std::ranges::any_of(branch.parts().nodes,
                               [](const GraphNode& inner) { return is_random(inner); });
  });
}

std::vector<at::Tensor> changed_states(const GraphParts& parts) {
  std::unordered_set<int32_t> values;
  std::unordered_set<int32_t> memories;
  for (const GraphNode& node : parts.nodes) {
    for (const std::size_t i : written_arguments(*find_schema(node.op), node.arguments)) {
      for_each_value(node.arguments[i], [&](ValueId value) {
        values.insert(value.value());
        memories.insert(parts.values[value].memory);
      });
    }
  }
  std::vector<at::Tensor> changed;
  for (const GraphState& state : parts.states) {
    const int32_t memory = parts.values[state.value].memory;
    if (values.contains(state.value.value()) || (memory >= 0 && memories.contains(memory))) {
      changed.push_back(state.tensor);
    }
  }
  return changed;
}

}  // namespace stagecraft
