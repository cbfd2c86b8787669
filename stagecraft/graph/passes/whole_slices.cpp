#include "stagecraft/graph/passes/whole_slices.h"

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace stagecraft {

namespace {

int64_t number_of(const Argument& argument, int64_t otherwise) {
  const c10::IValue* fixed = argument.fixed_value();
  return fixed != nullptr && fixed->isInt() ? fixed->toInt() : otherwise;
}

bool is_whole(const GraphParts& parts, const GraphNode& node) {
  if (node.op == c10::OperatorName("aten::alias", "")) return true;
  if (node.op != c10::OperatorName("aten::slice", "Tensor")) return false;
  const ValueId* self = node.arguments[0].value();
  if (self == nullptr) return false;
  const std::vector<SizeExpr>& shape = parts.values[*self].shape;
  int64_t dim = number_of(node.arguments[1], 0);
  if (dim < 0) dim += static_cast<int64_t>(shape.size());
  if (dim < 0 || dim >= static_cast<int64_t>(shape.size())) return false;
  const int64_t size = shape[static_cast<std::size_t>(dim)].number();
  return number_of(node.arguments[2], 0) == 0 && number_of(node.arguments[3], size) >= size &&
         number_of(node.arguments[4], 1) == 1;
}

}  // namespace

GraphParts without_whole_slices(GraphParts parts) {
  std::unordered_map<int32_t, ValueId> viewed;
  auto replaced = [&](ValueId value) -> Argument {
    const auto found = viewed.find(value.value());
    return found == viewed.end() ? value : found->second;
  };
  std::vector<GraphNode> kept;
  for (GraphNode& node : parts.nodes) {
    // Before the node is judged: a slice of a removed slice then refers to the value that is
    // viewed.
    for (Argument& argument : node.arguments) argument = map_values(argument, replaced);
    if (is_whole(parts, node)) {
      viewed.emplace(node.results[0].value()->value(), *node.arguments[0].value());
    } else {
      kept.push_back(std::move(node));
    }
  }
  for (Argument& output : parts.outputs) output = map_values(output, replaced);
  parts.nodes = std::move(kept);
  return parts;
}

}  // namespace stagecraft
