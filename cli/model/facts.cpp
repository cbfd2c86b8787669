#include "cli/model/facts.h"

#include <limits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "stagecraft/graph/size_rule.h"
#include "stagecraft/tree/describe.h"

namespace stagecraft::cli {
namespace {

std::vector<std::string> shape_of(const Graph& graph, ValueId value) {
  const std::vector<std::string> names = graph.size_names();
  const GraphValue& info = graph.value(value);
  std::vector<std::string> shape;
  for (std::size_t dim = 0; dim < info.shape.size(); ++dim) {
    const bool is_open = (info.open_dims >> dim & 1) != 0;
    shape.push_back((is_open ? "?" : "") + to_text(info.shape[dim], names));
  }
  return shape;
}

LeafFacts leaf_of(const Graph& graph, const Argument& argument, std::string path) {
  LeafFacts leaf;
  leaf.path = std::move(path);
  if (const ValueId* value = argument.value()) {
    leaf.dtype = dtype_name(graph.value(*value).dtype);
    leaf.shape = shape_of(graph, *value);
    const std::vector<int64_t> sizes = example_sizes(graph);
    for (const SizeExpr& size : graph.value(*value).shape) leaf.example.push_back(size.at(sizes));
  } else if (const SizeExpr* size = argument.size()) {
    leaf.kind = LeafFacts::Kind::kNumber;
    leaf.value = to_text(*size, graph.size_names());
  } else {
    leaf.kind = LeafFacts::Kind::kFixed;
    const c10::IValue* fixed = argument.fixed_value();
    leaf.value = fixed != nullptr ? describe(*fixed) : "list";
  }
  return leaf;
}

void add_sizes_of(const Graph& graph, const Argument& argument, SizeSet& seen) {
  for_each_value(argument, [&](ValueId value) {
    for (const SizeExpr& size : graph.value(value).shape) seen |= size.sizes();
  });
  for_each_size(argument, [&](const SizeExpr& size) { seen |= size.sizes(); });
}

/// The sizes that inputs and outputs depend on, directly or through other sizes.
SizeSet visible_sizes(const Graph& graph) {
  const GraphParts& parts = graph.parts();
  SizeSet seen = 0;
  for (const Argument& input : parts.inputs) add_sizes_of(graph, input, seen);
  for (const Argument& output : parts.outputs) add_sizes_of(graph, output, seen);
  for (std::size_t s = parts.sizes.size(); s-- > 0;) {
    if ((seen >> s & 1) != 0 && parts.sizes[s].rule) seen |= parts.sizes[s].rule->sizes();
  }
  return seen;
}

SizeFacts size_of(const Graph& graph, std::size_t number, SizeSet visible) {
  const GraphSize& size = graph.parts().sizes[number];
  SizeFacts facts;
  facts.name = size.name;
  facts.example = size.example;
  facts.is_visible = (visible >> number & 1) != 0;
  if (size.rule) {
    facts.follows = to_text(*size.rule, graph.size_names());
  } else if (size.measured) {
    const std::string& name = graph.value(size.measured->value).name;
    facts.follows = size.measured->dim < 0 ? fmt::format("the number in {}", name)
                                           : fmt::format("{}.size({})", name, size.measured->dim);
  } else {
    facts.least = size.least;
    if (size.greatest != std::numeric_limits<int64_t>::max()) facts.greatest = size.greatest;
  }
  return facts;
}

void add_state(const Graph& graph, const GraphState& state, ModelFacts& facts) {
  const bool is_parameter = state.kind == GraphState::Kind::kParameter;
  TensorsFacts& group =
      is_parameter ? (state.tensor.requires_grad() ? facts.trained : facts.frozen)
                   : (state.kind == GraphState::Kind::kBuffer ? facts.buffers : facts.constants);
  ++group.tensors;
  group.elements += state.tensor.numel();
  group.bytes += static_cast<int64_t>(state.tensor.nbytes());
  if (state.other_names.empty()) return;
  std::vector<std::string>& names = facts.tied.emplace_back();
  names.push_back(graph.value(state.value).name);
  names.insert(names.end(), state.other_names.begin(), state.other_names.end());
}

}  // namespace

std::vector<int64_t> example_sizes(const Graph& graph) {
  std::vector<int64_t> sizes;
  for (const GraphSize& size : graph.parts().sizes) sizes.push_back(size.example);
  return sizes;
}

std::string type_text(const Graph& graph, ValueId value) {
  return fmt::format("{}[{}]", dtype_name(graph.value(value).dtype),
                     fmt::join(shape_of(graph, value), ", "));
}

ModelFacts facts_of(const Graph& graph) {
  const GraphParts& parts = graph.parts();
  ModelFacts facts;
  const std::size_t positional = parts.args.num_leaves();
  for (std::size_t i = 0; i < parts.inputs.size(); ++i) {
    facts.inputs.push_back(leaf_of(graph, parts.inputs[i],
                                   i < positional
                                       ? parts.args.leaf_path(i, "args")
                                       : parts.kwargs.leaf_path(i - positional, "kwargs")));
  }
  for (std::size_t i = 0; i < parts.outputs.size(); ++i) {
    facts.outputs.push_back(leaf_of(graph, parts.outputs[i], parts.output.leaf_path(i, "output")));
  }
  const SizeSet visible = visible_sizes(graph);
  for (std::size_t s = 0; s < parts.sizes.size(); ++s) {
    facts.sizes.push_back(size_of(graph, s, visible));
  }
  for (const GraphGuard& guard : parts.guards) facts.conditions.push_back(guard.text);
  for (const GraphState& state : parts.states) add_state(graph, state, facts);
  return facts;
}

}  // namespace stagecraft::cli
