#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "stagecraft/base/check.h"
#include "stagecraft/exported/node_builder.h"
#include "stagecraft/exported/shared_memory.h"
#include "stagecraft/graph/passes/dead_code.h"
#include "stagecraft/graph/passes/run_pass.h"
#include "stagecraft/graph/size_analysis.h"

namespace stagecraft::exported {

const RawGraph& NodeBuilder::graph_at(const RawNode& node, std::size_t i) const {
  require<GraphError>(i < node.inputs.size() && node.inputs[i].second.graph() != nullptr,
                      "expected a graph as argument {}", i);
  return *node.inputs[i].second.graph();
}

const c10::IValue& NodeBuilder::fixed_at(const RawNode& node, std::size_t i) const {
  require<GraphError>(i < node.inputs.size() && node.inputs[i].second.fixed() != nullptr,
                      "expected a fixed value as argument {}", i);
  return *node.inputs[i].second.fixed();
}

bool NodeBuilder::flag_at(const RawNode& node, std::size_t i) const {
  const c10::IValue& value = fixed_at(node, i);
  require<GraphError>(value.isBool(), "expected true or false as argument {}", i);
  return value.toBool();
}

void NodeBuilder::import_region(const RawNode& node, const std::string& kind, Scope& scope,
                                const Mode& mode) {
  if (kind == "wrap_with_set_grad_enabled") {
    Mode inner = mode;
    inner.is_no_grad = !flag_at(node, 0);
    inline_region(node, 1, scope, inner);
  } else if (kind == "wrap_with_autocast") {
    inline_region(node, 4, scope, autocast_of(node, mode));
  } else if (kind == "cond") {
    import_cond(node, scope, mode);
  } else {
    throw GraphError(
        fmt::format("the region {} is not supported; supported regions are cond, "
                    "wrap_with_set_grad_enabled and wrap_with_autocast",
                    kind));
  }
}

Mode NodeBuilder::autocast_of(const RawNode& node, const Mode& mode) {
  const c10::IValue& type = fixed_at(node, 0);
  require<GraphError>(type.isString(), "expected a kind of device as argument 0");
  Mode inner = mode;
  AutocastState state;
  state.device_type = c10::Device(type.toStringRef()).type();
  const c10::IValue& dtype = fixed_at(node, 1);
  if (dtype.isInt()) {
    state.dtype = static_cast<c10::ScalarType>(dtype.toInt());
  } else {
    state.dtype = state.device_type == c10::kCPU ? c10::kBFloat16 : c10::kHalf;
  }
  state.is_enabled = flag_at(node, 2);
  const c10::IValue& cache = fixed_at(node, 3);
  state.is_cached = !cache.isBool() || cache.toBool();
  if (mode.autocast && mode.autocast->device_type != state.device_type) {
    // A graph is on one kind of device, and the outer region applies to that kind.
    warnings_.push_back(
        fmt::format("an autocast region for {} inside one for a different kind of device is "
                    "ignored",
                    type.toStringRef()));
    return mode;
  }
  state.region = mode.autocast ? mode.autocast->region : ++regions_;
  inner.autocast = state;
  return inner;
}

// Adds the nodes of a region to those of the graph around it. The nodes keep their names.
void NodeBuilder::inline_region(const RawNode& node, std::size_t at, Scope& scope,
                                const Mode& mode) {
  const RawGraph& graph = graph_at(node, at);
  std::vector<RawArgument> given;
  for (std::size_t i = at + 1; i < node.inputs.size(); ++i) flatten(node.inputs[i].second, given);
  require<GraphError>(given.size() == graph.inputs.size(), "the region takes {} values, got {}",
                      graph.inputs.size(), given.size());
  Scope inner;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const RawName* name = graph.inputs[i].name();
    if (name == nullptr || name->kind != RawName::Kind::kTensor) continue;
    inner[name->name] = resolve(given[i], scope);
  }
  import_nodes(graph, inner, mode);
  const std::vector<RawArgument> made = flattened(graph.outputs);
  const std::vector<RawArgument> taken = flattened(node.outputs);
  require<GraphError>(taken.size() <= made.size(), "the region returns {} values, expected {}",
                      made.size(), taken.size());
  for (std::size_t i = 0; i < taken.size(); ++i) {
    const RawName* name = taken[i].name();
    if (name == nullptr || name->kind != RawName::Kind::kTensor || name->name.empty()) continue;
    scope[name->name] = resolve(made[i], inner);
  }
}

void NodeBuilder::import_cond(const RawNode& node, Scope& scope, const Mode& mode) {
  require<GraphError>(node.inputs.size() >= 3, "expected a predicate and two graphs");
  GraphNode made = start_node(node, {kCondOperator, ""}, mode);
  Argument predicate = resolve(node.inputs[0].second, scope);
  if (predicate.value() == nullptr) predicate = as_tensor(predicate, node, mode);
  std::vector<RawArgument> given;
  for (std::size_t i = 3; i < node.inputs.size(); ++i) flatten(node.inputs[i].second, given);
  std::vector<SizeTable> tables(2, sizes_.for_branch());
  std::vector<GraphParts> branches(2);
  Argument::List operands;
  for (const RawArgument& each : given) {
    const RawName* name = each.name();
    if (name != nullptr && name->kind == RawName::Kind::kTensor) {
      operands.push_back(resolve(each, scope));
    }
  }
  for (std::size_t b = 0; b < 2; ++b) {
    build_branch(graph_at(node, b + 1), given, made.name + (b == 0 ? ".then." : ".else."),
                 tables[b], branches[b]);
  }
  // Both branches get the sizes that either of them needs.
  SizeSet needed = 0;
  for (std::size_t b = 0; b < 2; ++b) needed |= needed_sizes(branches[b], tables[b]);
  Argument::List told;
  for (std::size_t i = 0; i < sizes_.sizes().size(); ++i) {
    if ((needed >> i & 1) == 0) continue;
    const SizeExpr size = SizeExpr::of_size(static_cast<int>(i));
    told.emplace_back(size);
    for (GraphParts& branch : branches) branch.inputs.emplace_back(size);
  }
  for (std::size_t b = 0; b < 2; ++b) {
    branches[b].args = TreeSpec::tuple(std::vector<TreeSpec>(branches[b].inputs.size()));
    branches[b].sizes = tables[b].sizes();
    find_shared_memory(branches[b], {});
    made.branches.push_back(run_pass(std::move(branches[b]), without_dead_code));
  }
  made.arguments = {predicate, std::move(operands), std::move(told)};
  Argument::List results;
  for (const RawArgument& each : flattened(node.outputs)) {
    results.push_back(make_result(each, made.name, scope));
  }
  // Not `= {std::move(results)}`: compilers differ in whether that is one list or its elements.
  made.results.emplace_back(std::move(results));
  parts_.nodes.push_back(std::move(made));
}

SizeSet NodeBuilder::needed_sizes(const GraphParts& branch, const SizeTable& table) {
  SizeSet needed = read_sizes(branch);
  for (std::size_t i = table.sizes().size(); i-- > 0;) {
    const GraphSize& size = table.sizes()[i];
    if ((needed >> i & 1) == 0 || (!size.rule && !size.measured)) continue;
    needed &= ~(SizeSet{1} << i);
    if (size.rule) needed |= size.rule->sizes();
  }
  return needed;
}

void NodeBuilder::build_branch(const RawGraph& graph, const std::vector<RawArgument>& given,
                               const std::string& prefix, SizeTable& table, GraphParts& branch) {
  require<GraphError>(graph.inputs.size() == given.size(), "a branch takes {} values, got {}",
                      graph.inputs.size(), given.size());
  NodeBuilder inner(branch, table, names_, warnings_, prefix);
  inner.graphs_ = graphs_;
  inner.functions_ = functions_;
  Scope scope;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const RawName* name = graph.inputs[i].name();
    if (name == nullptr || name->kind != RawName::Kind::kTensor) continue;
    const auto meta = graph.tensors.find(name->name);
    require<GraphError>(meta != graph.tensors.end(),
                        "the archive does not say what the tensor {} is", name->name);
    const ValueId id = inner.add_value(names_.make(prefix + name->name), meta->second);
    scope[name->name] = id;
    branch.inputs.emplace_back(id);
  }
  inner.import_nodes(graph, scope, {});
  inner.graphs_.push_back(&graph);
  for (const RawArgument& output : flattened(graph.outputs)) {
    branch.outputs.push_back(inner.resolve(output, scope));
    require<GraphError>(branch.outputs.back().value() != nullptr,
                        "a branch returns something that is not a tensor");
  }
  branch.output = TreeSpec::tuple(std::vector<TreeSpec>(branch.outputs.size()));
  regions_ = std::max(regions_, inner.regions_);
}

Argument NodeBuilder::as_tensor(const Argument& number, const RawNode& node, const Mode& mode) {
  GraphNode made = start_node(node, {"aten::scalar_tensor", ""}, mode);
  made.arguments = {number, {}, {}, {}, {}};
  return add_node(std::move(made), {.name = "", .dtype = c10::kFloat});
}

}  // namespace stagecraft::exported
