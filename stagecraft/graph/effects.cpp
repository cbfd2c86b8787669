#include "stagecraft/graph/effects.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>

#include "stagecraft/base/check.h"
#include "stagecraft/graph/op_types.h"
#include "stagecraft/graph/passes/compact.h"

namespace stagecraft {

namespace {

/// Operators that change running statistics when a flag of theirs is set.
struct RunningStatistics {
  std::string_view op;
  std::string_view flag;
};
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
    const GraphValue& value = parts.values[state.value.position()];
    if (value.memory >= 0) sharing[value.memory].push_back(value.name);
    if (!state.tensor.requires_grad() || !state.tensor.has_storage()) continue;
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
        const auto found = sharing.find(parts.values[value.position()].memory);
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

/// Operators that draw only where an argument says so.
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
        memories.insert(parts.values[value.position()].memory);
      });
    }
  }
  std::vector<at::Tensor> changed;
  for (const GraphState& state : parts.states) {
    const int32_t memory = parts.values[state.value.position()].memory;
    if (values.contains(state.value.value()) || (memory >= 0 && memories.contains(memory))) {
      changed.push_back(state.tensor);
    }
  }
  return changed;
}

namespace {

/// Walks backwards and marks what is needed.
class Liveness {
 public:
  explicit Liveness(const GraphParts& parts) : parts_(parts), values_(parts.values.size(), false) {
    for (const GraphState& state : parts.states) note_outside(state.value);
    for (const Argument& input : parts.inputs) {
      for_each_value(input, [&](ValueId value) { note_outside(value); });
    }
    for (const Argument& output : parts.outputs) need(output);
    for (const GraphSize& size : parts.sizes) {
      if (size.measured) need(size.measured->value);
    }
  }

  bool is_needed(const GraphNode& node) const {
    if (node.results.empty() || is_random(node)) return true;
    bool result = false;
    for (const Argument& made : node.results) {
      for_each_value(made, [&](ValueId value) { result |= is_live(value); });
    }
    if (result) return true;
    const c10::FunctionSchema* schema = find_schema(node.op);
    for (const std::size_t i : written_arguments(*schema, node.arguments)) {
      for_each_value(node.arguments[i], [&](ValueId value) {
        const int32_t memory = memory_of(value);
        result |= is_outside(value) || (memory >= 0 && live_memory_.contains(memory));
      });
    }
    return result;
  }

  void need(const Argument& argument) {
    for_each_value(argument, [&](ValueId value) {
      values_[value.position()] = true;
      if (memory_of(value) >= 0) live_memory_.insert(memory_of(value));
    });
  }

  bool is_live(ValueId value) const { return values_[value.position()]; }

 private:
  int32_t memory_of(ValueId value) const { return parts_.values[value.position()].memory; }
  void note_outside(ValueId value) {
    outside_.insert(value.value());
    if (memory_of(value) >= 0) outside_memory_.insert(memory_of(value));
  }
  bool is_outside(ValueId value) const {
    return outside_.contains(value.value()) || outside_memory_.contains(memory_of(value));
  }

  const GraphParts& parts_;
  std::vector<bool> values_;
  std::unordered_set<int32_t> live_memory_;
  std::unordered_set<int32_t> outside_;
  std::unordered_set<int32_t> outside_memory_;
};

}  // namespace

GraphParts without_dead_code(const GraphParts& parts) {
  Liveness live(parts);
  std::vector<GraphNode> kept;
  for (std::size_t n = parts.nodes.size(); n-- > 0;) {
    const GraphNode& node = parts.nodes[n];
    if (!live.is_needed(node)) continue;
    for (const Argument& argument : node.arguments) live.need(argument);
    kept.push_back(node);
  }
  std::ranges::reverse(kept);
  GraphParts result = parts;
  result.nodes = std::move(kept);
  return compact(std::move(result));
}

}  // namespace stagecraft
