#include "stagecraft/partition/flops.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "stagecraft/graph/effects.h"
#include "stagecraft/graph/grouped_mm.h"
#include "stagecraft/graph/op_types.h"

namespace stagecraft {

namespace {

using Shape = std::vector<int64_t>;

int64_t product(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

/// The shapes around a node at the sizes of the example.
class Shapes {
 public:
  Shapes(const Graph& graph, const GraphNode& node) : graph_(graph), node_(node) {
    for (const GraphSize& size : graph.parts().sizes) sizes_.push_back(size.example);
  }

  Shape of(ValueId value) const {
    Shape shape;
    for (const SizeExpr& size : graph_.value(value).shape) shape.push_back(size.at(sizes_));
    return shape;
  }
  /// The shapes of the tensors of an argument.
  std::vector<Shape> argument(std::size_t i) const {
    std::vector<Shape> shapes;
    for_each_value(node_.arguments[i], [&](ValueId value) { shapes.push_back(of(value)); });
    return shapes;
  }
  Shape tensor(std::size_t i) const {
    const auto shapes = argument(i);
    return shapes.empty() ? Shape{} : shapes.front();
  }
  Shape result() const {
    Shape shape;
    bool is_first = true;
    for (const Argument& made : node_.results) {
      for_each_value(made, [&](ValueId value) {
        if (is_first) shape = of(value);
        is_first = false;
      });
    }
    return shape;
  }

 private:
  const Graph& graph_;
  const GraphNode& node_;
  std::vector<int64_t> sizes_;
};

int64_t last(const Shape& shape) {
  return shape.empty() ? 1 : shape.back();
}

/// Two operations for each combination of letters: `bhqd,bhkd->bhqk` is 2 b h q d k.
int64_t einsum(const Shapes& shapes, const GraphNode& node) {
  const c10::IValue* equation = node.arguments[0].fixed_value();
  if (equation == nullptr || !equation->isString()) return product(shapes.result());
  std::map<char, int64_t> sizes;
  std::size_t operand = 0;
  std::size_t dim = 0;
  const std::vector<Shape> operands = shapes.argument(1);
  for (const char c : equation->toStringRef()) {
    if (c == '-') break;
    if (c == ' ') continue;
    if (c == ',') {
      ++operand;
      dim = 0;
    } else if (operand < operands.size() && dim < operands[operand].size()) {
      sizes[c] = operands[operand][dim++];
    }
  }
  int64_t result = 2;
  for (const auto& [letter, size] : sizes) result *= size;
  return result;
}

int64_t attention(const Shapes& shapes) {
  const Shape query = shapes.tensor(0);
  const Shape key = shapes.tensor(1);
  if (query.size() < 2 || key.size() < 2) return product(shapes.result());
  // Two matrix products: query and key, scores and value. The value counts as wide as the query.
  return 4 * product(query) * key[key.size() - 2];
}

/// Recurrent layers: each row of the input is multiplied by every weight.
int64_t recurrent(const Shapes& shapes) {
  const Shape input = shapes.tensor(0);
  const int64_t rows = last(input) == 0 ? 0 : product(input) / last(input);
  int64_t weights = 0;
  for (std::size_t i = 1; i < 4; ++i) {
    for (const Shape& shape : shapes.argument(i)) {
      if (shape.size() == 2) weights += product(shape);
    }
  }
  return 2 * rows * weights;
}

/// A grouped matrix product. The groups are rows of the left operand, or its columns if both
/// operands are matrices.
int64_t grouped(const Shapes& shapes) {
  const Shape left = shapes.tensor(0);
  const Shape right = shapes.tensor(1);
  const bool is_by_columns = left.size() == 2 && right.size() == 2;
  return is_by_columns ? 2 * product(left) * last(right)
                       : 2 * product(shapes.result()) * last(left);
}

using Count = int64_t (*)(const Shapes& shapes, const GraphNode& node);

int64_t convolution(const Shapes& shapes, const GraphNode&) {
  const Shape weight = shapes.tensor(1);
  const int64_t channels = weight.empty() ? 1 : weight[0];
  return channels == 0 ? 0 : 2 * product(shapes.result()) * product(weight) / channels;
}

/// In a transposed convolution each element of the input, not of the result, is multiplied by the
/// kernel.
int64_t transposed(const Shapes& shapes, const GraphNode&) {
  const Shape weight = shapes.tensor(1);
  const int64_t channels = weight.empty() ? 1 : weight[0];
  return channels == 0 ? 0 : 2 * product(shapes.tensor(0)) * product(weight) / channels;
}

const std::unordered_map<std::string_view, Count>& counts() {
  static const Count by_first = [](const Shapes& s, const GraphNode&) {
    return 2 * product(s.result()) * last(s.tensor(0));
  };
  static const Count by_second = [](const Shapes& s, const GraphNode&) {
    return 2 * product(s.result()) * last(s.tensor(1));
  };
  static const Count by_attention = [](const Shapes& s, const GraphNode&) { return attention(s); };
  static const Count by_group = [](const Shapes& s, const GraphNode&) { return grouped(s); };
  static const Count by_recurrent = [](const Shapes& s, const GraphNode&) { return recurrent(s); };
  static const std::unordered_map<std::string_view, Count> table = {
      {"aten::mm", by_first},
      {"aten::bmm", by_first},
      {"aten::matmul", by_first},
      {"aten::linear", by_first},
      {"aten::mv", by_first},
      {"aten::dot", by_first},
      {"aten::addmm", by_second},
      {"aten::addmm_", by_second},
      {"aten::baddbmm", by_second},
      {"aten::addbmm", by_second},
      {"aten::addmv", by_second},
      {"aten::_grouped_mm", by_group},
      {kGroupedMmOperator, by_group},
      {"aten::einsum", einsum},
      {"aten::conv1d", convolution},
      {"aten::conv2d", convolution},
      {"aten::conv3d", convolution},
      {"aten::convolution", convolution},
      {"aten::conv_transpose1d", transposed},
      {"aten::conv_transpose2d", transposed},
      {"aten::conv_transpose3d", transposed},
      {"aten::scaled_dot_product_attention", by_attention},
      {"aten::lstm", by_recurrent},
      {"aten::gru", by_recurrent},
      {"aten::rnn_tanh", by_recurrent},
      {"aten::rnn_relu", by_recurrent},
  };
  return table;
}

/// Whether the operator returns a view of its first argument.
bool is_view(const Graph& graph, const GraphNode& node) {
  if (node.results.empty() || node.arguments.empty()) return false;
  if (!written_arguments(*find_schema(node.op), node.arguments).empty()) return false;
  int32_t memory = -1;
  bool is_shared = false;
  for_each_value(node.arguments[0], [&](ValueId value) { memory = graph.value(value).memory; });
  for_each_value(node.results[0], [&](ValueId value) {
    is_shared = memory >= 0 && graph.value(value).memory == memory;
  });
  return is_shared;
}

}  // namespace

int64_t example_flops(const Graph& graph, const GraphNode& node) {
  // A cond costs as much as the more expensive of its branches.
  int64_t dearest = 0;
  for (const Graph& branch : node.branches) {
    int64_t sum = 0;
    for (const GraphNode& inner : branch.parts().nodes) sum += example_flops(branch, inner);
    dearest = std::max(dearest, sum);
  }
  if (!node.branches.empty()) return dearest;
  if (node.results.empty() || is_view(graph, node)) return 0;
  const Shapes shapes(graph, node);
  const auto found = counts().find(node.op.name);
  return found == counts().end() ? product(shapes.result()) : found->second(shapes, node);
}

}  // namespace stagecraft
