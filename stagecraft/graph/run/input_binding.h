#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/graph/graph.h"
#include "stagecraft/graph/size_analysis.h"
#include "stagecraft/tree/arguments.h"

namespace stagecraft {

/// Turns the arguments of a call into the inputs of a graph: flattens trees, checks every leaf and
/// determines the sizes.
class InputBinding {
 public:
  explicit InputBinding(const Graph& graph);

  /// The leaves, in the order of GraphParts::inputs. Throws MetadataError for a different
  /// structure, fixed value or dtype, or a shape that the graph does not take: `args[0]:
  /// expected Tensor[B, 16] float32, got Tensor[4, 8] float32`.
  std::vector<c10::IValue> leaves(const Args& args, const Kwargs& kwargs) const;
  /// The value of each of GraphParts::sizes; 0 if the inputs do not determine it. MetadataError for
  /// sizes that the graph does not take, and for a guard that is violated.
  std::vector<int64_t> sizes(std::span<const c10::IValue> leaves) const;

 private:
  void check_leaf(std::size_t leaf, const c10::IValue& given) const;
  void add_rules(std::vector<int64_t>& sizes) const;
  void check_guards(std::span<const int64_t> sizes) const;
  std::string dimension_of(const SizeStep& step) const;
  void check_shapes(std::span<const c10::IValue> leaves, std::span<const int64_t> sizes) const;
  std::string leaf_path(std::size_t leaf) const;
  std::string expected_at(std::size_t leaf) const;
  const SizeExpr& shape_at(const SizeStep& step) const;

  Graph graph_;
  std::vector<std::string> size_names_;
  std::vector<SizeStep> steps_;
  SizeSet known_ = 0;
};

/// The reverse of InputBinding::leaves: the arguments of a call from a value for each leaf.
Arguments arguments_of_leaves(const Graph& graph, std::vector<c10::IValue> leaves);

}  // namespace stagecraft
