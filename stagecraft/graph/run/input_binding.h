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

/// How the arguments of a call become the inputs of a graph: takes trees apart, checks every leaf
/// and finds the sizes.
class InputBinding {
 public:
  explicit InputBinding(const Graph& graph);

  /// The leaves, in the order of GraphParts::inputs. Throws MetadataError for another structure,
  /// another fixed value, another dtype or a shape that the graph was not made for: `args[0]:
  /// expected Tensor[B, 16] float32, got Tensor[4, 8] float32`.
  std::vector<c10::IValue> leaves(const Args& args, const Kwargs& kwargs) const;
  /// The size of each of GraphParts::sizes; 0 for one that the inputs do not tell. MetadataError
  /// for sizes that the graph was not made for, and where a guard does not hold.
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

}  // namespace stagecraft
