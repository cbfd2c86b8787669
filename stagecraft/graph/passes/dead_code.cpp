#include "stagecraft/graph/passes/dead_code.h"

#include <cstddef>
#include <cstdint>
#include <unordered_set>
#include <utility>
#include <vector>

#include "stagecraft/graph/effects.h"
#include "stagecraft/graph/op_types.h"

namespace stagecraft {

namespace {

/// Marks the values that are needed, from the last node to the first.
class Liveness {
 public:
  explicit Liveness(const GraphParts& parts) : parts_(parts), values_(parts.values.size(), false) {
    for (const GraphState& state : parts.states) note_outside(state.value);
    for (const Argument& input : parts.inputs) {
      for_each_value(input, [&](ValueId value) { note_outside(value); });
    }
    for (const Argument& output : parts.outputs) need(output);
    for (const GraphSize& size : parts.sizes) {
      // A measured size may be read by nodes, so its value must be computed.
      if (size.measured) need(size.measured->value);
    }
  }

  bool is_needed(const GraphNode& node) const {
    // A node without results is there for its effect (pipe_split). A random node that is dropped
    // would shift the numbers of all later ones.
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
        // A write is needed if a later node reads the same memory through a view, or if the memory
        // belongs to the caller or the model.
        result |= is_outside(value) || (memory >= 0 && live_memory_.contains(memory));
      });
    }
    return result;
  }

  void need(const Argument& argument) {
    for_each_value(argument, [&](ValueId value) {
      values_[value] = true;
      if (memory_of(value) >= 0) live_memory_.insert(memory_of(value));
    });
  }

  bool is_live(ValueId value) const { return values_[value]; }

 private:
  int32_t memory_of(ValueId value) const { return parts_.values[value].memory; }
  void note_outside(ValueId value) {
    outside_.insert(value.value());
    if (memory_of(value) >= 0) outside_memory_.insert(memory_of(value));
  }
  bool is_outside(ValueId value) const {
    return outside_.contains(value.value()) || outside_memory_.contains(memory_of(value));
  }

  const GraphParts& parts_;
  IndexedVector<ValueId, bool> values_;
  std::unordered_set<int32_t> live_memory_;
  std::unordered_set<int32_t> outside_;
  std::unordered_set<int32_t> outside_memory_;
};

}  // namespace

GraphParts without_dead_code(GraphParts parts) {
  Liveness live(parts);
  std::vector<bool> is_kept(parts.nodes.size(), false);
  // From the end: whether a node is needed depends on later nodes only.
  for (std::size_t n = parts.nodes.size(); n-- > 0;) {
    is_kept[n] = live.is_needed(parts.nodes[n]);
    if (!is_kept[n]) continue;
    for (const Argument& argument : parts.nodes[n].arguments) live.need(argument);
  }
  std::vector<GraphNode> kept;
  for (std::size_t n = 0; n < parts.nodes.size(); ++n) {
    if (is_kept[n]) kept.push_back(std::move(parts.nodes[n]));
  }
  parts.nodes = std::move(kept);
  return parts;
}

}  // namespace stagecraft
