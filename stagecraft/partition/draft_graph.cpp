#include <algorithm>
#include <cstddef>
#include <limits>
#include <string_view>
#include <utility>

#include "stagecraft/partition/stage_drafts.h"

namespace stagecraft {

namespace {

/// Adds a value like `like`, with memory of its own.
ValueId add_value(GraphParts& parts, ValueId like, std::string_view suffix) {
  GraphValue value = parts.values[like];
  value.name += suffix;
  value.memory = -1;
  return parts.values.push_back(std::move(value));
}

bool is_written_in(const StageDrafts& drafts, ValueId value, int32_t stage) {
  return std::ranges::any_of(drafts.uses().memory_of(value).writes,
                             [&](int32_t node) { return drafts.stage_of(node) == stage; });
}

bool is_read_elsewhere(const StageDrafts& drafts, ValueId value, int32_t stage) {
  const auto end = static_cast<int32_t>(drafts.graph().parts().nodes.size());
  return std::ranges::any_of(drafts.uses().reads(value), [&](int32_t node) {
    return (node < end ? drafts.stage_of(node) : drafts.last()) != stage;
  });
}

// A stage gets a copy of a value that it changes in place and that other stages read, too: stages
// may share memory, and work on different microbatches at the same time.
void copy_before_changes(const StageDrafts& drafts, int32_t k, GraphParts& parts) {
  std::vector<GraphNode> copies;
  std::map<ValueId, ValueId> copied;
  for (const Argument& input : parts.inputs) {
    const ValueId* value = input.value();
    if (value == nullptr || !drafts.graph().parts().values.contains(*value)) continue;
    if (!is_written_in(drafts, *value, k) || !is_read_elsewhere(drafts, *value, k)) continue;
    const int32_t memory = parts.values[*value].memory;
    const ValueId copy = add_value(parts, *value, ".copy");
    parts.values[copy].memory = memory;
    parts.values[*value].memory = -1;
    copied.emplace(*value, copy);
    GraphNode node;
    node.op = {"aten::clone", ""};
    node.name = parts.values[copy].name;
    node.arguments = {*value, Argument()};
    node.results = {copy};
    copies.push_back(std::move(node));
  }
  if (copies.empty()) return;
  auto replace = [&](ValueId value) -> Argument {
    const auto found = copied.find(value);
    return found == copied.end() ? value : found->second;
  };
  for (GraphNode& node : parts.nodes) {
    for (Argument& argument : node.arguments) argument = map_values(argument, replace);
  }
  for (Argument& output : parts.outputs) output = map_values(output, replace);
  parts.nodes.insert(parts.nodes.begin(), copies.begin(), copies.end());
}

// Arguments and keywords of the model, then values and sizes of earlier stages.
void add_inputs(const GraphParts& all, const StageDraft& draft, GraphParts& parts) {
  std::vector<TreeSpec> args;
  std::vector<std::string> names;
  std::vector<TreeSpec> kwargs;
  std::size_t leaf = 0;
  auto add = [&](const TreeSpec& spec, bool is_taken) {
    for (std::size_t i = 0; i < spec.num_leaves(); ++i, ++leaf) {
      if (!is_taken) continue;
      const ValueId* value = all.inputs[leaf].value();
      if (value != nullptr && draft.from.contains(*value)) {
        // An earlier stage has changed this leaf of a tree, so the caller's value is not read.
        parts.inputs.push_back(add_value(parts, *value, ".given"));
      } else {
        parts.inputs.push_back(all.inputs[leaf]);
      }
    }
  };
  const auto all_args = all.args.children();
  for (std::size_t i = 0; i < all_args.size(); ++i) {
    const bool is_taken = draft.arguments.contains(static_cast<int32_t>(i));
    if (is_taken) args.push_back(all_args[i]);
    add(all_args[i], is_taken);
  }
  std::vector<Argument> by_position = std::exchange(parts.inputs, {});
  const auto all_kwargs = all.kwargs.children();
  for (std::size_t i = 0; i < all_kwargs.size(); ++i) {
    const bool is_taken = draft.keywords.contains(all.kwargs.key(i));
    if (is_taken) {
      names.push_back(all.kwargs.key(i));
      kwargs.push_back(all_kwargs[i]);
    }
    add(all_kwargs[i], is_taken);
  }
  for (const auto& [value, from] : draft.from) {
    args.push_back(TreeSpec::leaf());
    by_position.emplace_back(value);
  }
  for (const auto& [size, from] : draft.sizes_from) {
    args.push_back(TreeSpec::leaf());
    by_position.emplace_back(SizeExpr::of_size(size));
  }
  parts.inputs.insert(parts.inputs.begin(), by_position.begin(), by_position.end());
  parts.args = TreeSpec::tuple(std::move(args));
  parts.kwargs = TreeSpec::dict(names, std::move(kwargs));
}

}  // namespace

GraphParts draft_graph(const StageDrafts& drafts, int32_t k) {
  const GraphParts& all = drafts.graph().parts();
  const StageDraft& draft = drafts[k];
  const auto stage = static_cast<std::size_t>(k);
  GraphParts parts;
  parts.is_exported = all.is_exported;
  parts.sizes = all.sizes;
  for (GraphSize& size : parts.sizes) {
    if (size.measured && drafts.stage_of(drafts.uses().of(size.measured->value).made) != k) {
      size.measured.reset();
      size.least = std::numeric_limits<int64_t>::min();
    }
  }
  parts.values = all.values;
  parts.states = drafts.states().states[stage];
  for (const GraphState& state : parts.states) {
    parts.values[state.value].name = drafts.states().names[stage].at(state.value);
  }
  add_inputs(all, draft, parts);
  for (std::size_t n = 0; n < all.nodes.size(); ++n) {
    if (drafts.stage_of(static_cast<int32_t>(n)) == k && all.nodes[n].op.name != kSplitOperator) {
      parts.nodes.push_back(all.nodes[n]);
    }
  }
  if (k == drafts.last()) {
    parts.output = all.output;
    parts.outputs = all.outputs;
  } else {
    for (const ValueId value : draft.outputs) parts.outputs.emplace_back(value);
    for (const int size : draft.size_outputs) parts.outputs.emplace_back(SizeExpr::of_size(size));
    parts.output = TreeSpec::tuple(std::vector<TreeSpec>(parts.outputs.size()));
  }
  copy_before_changes(drafts, k, parts);
  return parts;
}

}  // namespace stagecraft
