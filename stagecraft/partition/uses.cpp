#include "stagecraft/partition/uses.h"

#include <algorithm>
#include <unordered_map>

#include "stagecraft/graph/effects.h"
#include "stagecraft/graph/op_types.h"

namespace stagecraft {

ValueUses::ValueUses(const Graph& graph)
    : spans_(graph.parts().values.size()),
      reads_(graph.parts().values.size()),
      memory_of_(graph.parts().values.size()) {
  const GraphParts& parts = graph.parts();
  auto span = [&](ValueId value) -> Span& { return spans_[value]; };
  std::unordered_map<int32_t, std::size_t> by_number;
  for (ValueId v(0); parts.values.contains(v); ++v) {
    const int32_t number = parts.values[v].memory;
    std::size_t memory = memories_.size();
    if (number >= 0) memory = by_number.try_emplace(number, memory).first->second;
    if (memory == memories_.size()) memories_.emplace_back();
    memories_[memory].values.push_back(v);
    memory_of_[v] = memory;
  }
  auto memory = [&](ValueId value) -> Memory& { return memories_[memory_of_[value]]; };
  auto touch = [&](ValueId value, int32_t node) {
    span(value).last = std::max(span(value).last, node);
    memory(value).first = std::min(memory(value).first, node);
    memory(value).last = std::max(memory(value).last, node);
  };
  for (const GraphState& state : parts.states) {
    span(state.value).is_state = true;
    memory(state.value).has_state = true;
  }
  for (std::size_t n = 0; n < parts.nodes.size(); ++n) {
    const GraphNode& node = parts.nodes[n];
    const auto number = static_cast<int32_t>(n);
    for (const Argument& argument : node.arguments) {
      for_each_value(argument, [&](ValueId value) {
        touch(value, number);
        auto& reads = reads_[value];
        if (reads.empty() || reads.back() != number) reads.push_back(number);
      });
    }
    for (const std::size_t i : written_arguments(*find_schema(node.op), node.arguments)) {
      for_each_value(node.arguments[i], [&](ValueId value) {
        auto& writes = memory(value).writes;
        if (writes.empty() || writes.back() != number) writes.push_back(number);
      });
    }
    for (const Argument& result : node.results) {
      for_each_value(result, [&](ValueId value) {
        span(value).made = number;
        touch(value, number);
      });
    }
  }
  const auto end = static_cast<int32_t>(parts.nodes.size());
  for (const Argument& output : parts.outputs) {
    for_each_value(output, [&](ValueId value) {
      touch(value, end);
      reads_[value].push_back(end);
    });
  }
}

}  // namespace stagecraft
