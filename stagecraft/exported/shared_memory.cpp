#include "stagecraft/exported/shared_memory.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <unordered_map>

#include <ATen/core/function_schema.h>

#include "stagecraft/graph/op_types.h"

namespace stagecraft::exported {

namespace {

/// Operators that may return their argument or a view of it, although their schemas do not declare
/// this.
constexpr std::array<std::string_view, 27> kSilent = {"aten::dropout",
                                                      "aten::feature_dropout",
                                                      "aten::alpha_dropout",
                                                      "aten::feature_alpha_dropout",
                                                      "aten::broadcast_tensors",
                                                      "aten::meshgrid",
                                                      "aten::einsum",
                                                      "aten::atleast_1d",
                                                      "aten::atleast_2d",
                                                      "aten::atleast_3d",
                                                      "aten::conj_physical",
                                                      "aten::_unsafe_view",
                                                      "aten::type_as",
                                                      "aten::sum_to_size",
                                                      "aten::lstm",
                                                      "aten::gru",
                                                      "aten::unsafe_chunk",
                                                      "aten::unsafe_split",
                                                      "aten::unsafe_split_with_sizes",
                                                      "aten::lift",
                                                      "aten::cartesian_prod",
                                                      "aten::flatten_dense_tensors",
                                                      "aten::unflatten_dense_tensors",
                                                      "aten::to_dense",
                                                      "aten::to_dense_backward",
                                                      "aten::dequantize",
                                                      "aten::_to_cpu"};

/// A union-find structure: sets of values that may share memory.
class Sets {
 public:
  explicit Sets(int32_t count) {
    for (int32_t i = 0; i < count; ++i) parent_.push_back(ValueId(i));
  }

  ValueId find(ValueId i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }
  void join(ValueId a, ValueId b) { parent_[find(a)] = find(b); }

 private:
  IndexedVector<ValueId, ValueId> parent_;
};

void join_node(const GraphNode& node, Sets& sets) {
  const c10::FunctionSchema* schema = find_schema(node.op);
  if (schema == nullptr) return;
  const bool is_silent =
      std::ranges::count(kSilent, node.op.name) > 0 || node.op.name.starts_with("aten::_cast_");
  std::vector<ValueId> given;
  for (std::size_t i = 0; i < node.arguments.size(); ++i) {
    if (!is_silent && schema->arguments()[i].alias_info() == nullptr) continue;
    for_each_value(node.arguments[i], [&](ValueId value) { given.push_back(value); });
  }
  if (given.empty()) return;
  for (std::size_t i = 0; i < node.results.size(); ++i) {
    if (!is_silent && schema->returns()[i].alias_info() == nullptr) continue;
    for_each_value(node.results[i], [&](ValueId value) {
      for (const ValueId each : given) sets.join(value, each);
    });
  }
}

}  // namespace

void find_shared_memory(GraphParts& parts,
                        const std::vector<std::pair<ValueId, std::string>>& pieces) {
  Sets sets(parts.values.size());
  std::unordered_map<std::string, ValueId> first_of;
  for (const auto& [value, piece] : pieces) {
    const auto [found, is_new] = first_of.try_emplace(piece, value);
    if (!is_new) sets.join(value, found->second);
  }
  for (const GraphNode& node : parts.nodes) join_node(node, sets);
  std::unordered_map<ValueId, int> sharing;
  for (ValueId v(0); parts.values.contains(v); ++v) ++sharing[sets.find(v)];
  for (ValueId v(0); parts.values.contains(v); ++v) {
    const ValueId set = sets.find(v);
    parts.values[v].memory = sharing[set] > 1 ? set.value() : -1;
  }
}

}  // namespace stagecraft::exported
