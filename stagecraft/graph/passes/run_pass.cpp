#include "stagecraft/graph/passes/run_pass.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace stagecraft {

namespace {

IndexedVector<ValueId, bool> read_values(const GraphParts& parts) {
  IndexedVector<ValueId, bool> is_read(parts.values.size(), false);
  auto note = [&](ValueId value) { is_read[value] = true; };
  for (const GraphNode& node : parts.nodes) {
    for (const Argument& argument : node.arguments) for_each_value(argument, note);
  }
  for (const Argument& output : parts.outputs) for_each_value(output, note);
  for (const GraphSize& size : parts.sizes) {
    if (size.measured) note(size.measured->value);
  }
  return is_read;
}

void number_memory(GraphParts& parts) {
  std::unordered_map<int32_t, int> shared_by;
  for (const GraphValue& value : parts.values) ++shared_by[value.memory];
  std::unordered_map<int32_t, int32_t> numbers;
  for (GraphValue& value : parts.values) {
    if (value.memory < 0) continue;
    // The values that it shared memory with were dropped.
    if (shared_by[value.memory] == 1) {
      value.memory = -1;
    } else {
      value.memory =
          numbers.try_emplace(value.memory, static_cast<int32_t>(numbers.size())).first->second;
    }
  }
}

}  // namespace

GraphParts compact(GraphParts parts) {
  const IndexedVector<ValueId, bool> is_read = read_values(parts);
  std::erase_if(parts.states, [&](const GraphState& state) {
    // Parameters and buffers stay even if nothing reads them: the model has them, and so have its
    // checkpoints.
    return state.kind == GraphState::Kind::kConstant && !is_read[state.value];
  });
  IndexedVector<ValueId, std::optional<ValueId>> number(parts.values.size());
  IndexedVector<ValueId, GraphValue> values;
  auto renumber = [&](ValueId value) -> Argument {
    std::optional<ValueId>& kept = number[value];
    if (!kept) kept = values.push_back(std::move(parts.values[value]));
    return *kept;
  };
  auto renumber_all = [&](std::vector<Argument>& arguments) {
    for (Argument& argument : arguments) argument = map_values(argument, renumber);
  };
  // In the order of the text: states, inputs, nodes. Two graphs that are equal then have equal
  // numbers and equal texts.
  for (GraphState& state : parts.states) state.value = *renumber(state.value).value();
  renumber_all(parts.inputs);
  for (GraphNode& node : parts.nodes) {
    renumber_all(node.arguments);
    renumber_all(node.results);
  }
  renumber_all(parts.outputs);
  for (GraphSize& size : parts.sizes) {
    if (size.measured) size.measured->value = *renumber(size.measured->value).value();
  }
  parts.values = std::move(values);
  number_memory(parts);
  return parts;
}

Graph run_pass(GraphParts parts, const GraphPass& pass) {
  return Graph(compact(pass(std::move(parts))));
}

}  // namespace stagecraft
