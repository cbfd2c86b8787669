#include "stagecraft/graph/run/input_binding.h"

#include <cstddef>
#include <cstdint>
#include <optional>

#include <fmt/format.h>

#include "stagecraft/base/check.h"
#include "stagecraft/graph/graph_text.h"
#include "stagecraft/tree/describe.h"
#include "stagecraft/tree/tensor_meta.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {

namespace {

/// Solves expr = value for the size number `size`, where expr is a + b * size at the sizes that are
/// known. Returns nothing if there is no integer solution.
std::optional<int64_t> solve(const SizeExpr& expr, int size, int64_t value,
                             std::vector<int64_t> sizes) {
  auto& x = sizes[static_cast<std::size_t>(size)];
  // Each size is at most once in a product, so the expression is linear in x, and two values
  // determine it.
  x = 0;
  const int64_t a = expr.at(sizes);
  x = 1;
  const int64_t b = expr.at(sizes) - a;
  // b is 0 where a factor of x is a size that is 0.
  if (b == 0 || (value - a) % b != 0) return std::nullopt;
  return (value - a) / b;
}

}  // namespace

InputBinding::InputBinding(const Graph& graph)
    : graph_(graph), size_names_(graph.size_names()), steps_(plan_sizes(graph.parts())) {
  for (const SizeStep& step : steps_) known_ |= SizeSet{1} << step.size;
  known_ = with_rules(graph.parts(), known_);
}

std::vector<c10::IValue> InputBinding::leaves(const Args& args, const Kwargs& kwargs) const {
  const GraphParts& parts = graph_.parts();
  const auto positional = parts.args.children();
  const auto named = parts.kwargs.children();
  require<MetadataError>(args.size() == positional.size(),
                         "expected {} positional arguments, got {}", positional.size(),
                         args.size());
  std::vector<c10::IValue> result;
  result.reserve(parts.inputs.size());
  auto add = [&](const TreeSpec& spec, const c10::IValue& value, auto&& path) {
    // A shortcut: most arguments are one tensor.
    if (spec.is_leaf()) {
      result.push_back(value);
      return;
    }
    for (c10::IValue& leaf : tree::flatten_as(spec, value, path())) {
      result.push_back(std::move(leaf));
    }
  };
  for (std::size_t i = 0; i < args.size(); ++i) {
    add(positional[i], args[i], [&] { return fmt::format("args[{}]", i); });
  }
  for (std::size_t i = 0; i < named.size(); ++i) {
    const std::string& name = parts.kwargs.key(i);
    const c10::IValue* value = kwargs.find(name);
    require<MetadataError>(value != nullptr, "expected an argument by name '{}', got none", name);
    add(named[i], *value, [&] { return fmt::format("kwargs[\"{}\"]", name); });
  }
  if (kwargs.size() != named.size()) {
    for (const auto& [name, value] : kwargs) {
      bool is_known = false;
      for (std::size_t i = 0; i < named.size(); ++i) is_known |= parts.kwargs.key(i) == name;
      require<MetadataError>(is_known,
                             "got an argument by name '{}', which the graph does not take", name);
    }
  }
  // Kinds, dtypes and numbers of dimensions first: sizes are read from these tensors next.
  for (std::size_t leaf = 0; leaf < result.size(); ++leaf) check_leaf(leaf, result[leaf]);
  return result;
}

std::string InputBinding::leaf_path(std::size_t leaf) const {
  const GraphParts& parts = graph_.parts();
  const std::size_t positional = parts.args.num_leaves();
  return leaf < positional ? parts.args.leaf_path(leaf, "args")
                           : parts.kwargs.leaf_path(leaf - positional, "kwargs");
}

std::string InputBinding::expected_at(std::size_t leaf) const {
  return describe(graph_.value(*graph_.parts().inputs[leaf].value()), size_names_);
}

const SizeExpr& InputBinding::shape_at(const SizeStep& step) const {
  return graph_.value(*graph_.parts().inputs[step.leaf].value()).shape[step.dim];
}

void InputBinding::check_leaf(std::size_t leaf, const c10::IValue& given) const {
  const Argument& input = graph_.parts().inputs[leaf];
  if (const c10::IValue* fixed = input.fixed_value()) {
    if (tree::leaf_equal(*fixed, given)) return;
    throw MetadataError(fmt::format("{}: expected {}, which the graph was captured with, got {}",
                                    leaf_path(leaf), describe(*fixed), describe(given)));
  }
  if (const SizeExpr* size = input.size()) {
    if (given.isInt()) return;
    throw MetadataError(fmt::format("{}: expected the size {}, got {}", leaf_path(leaf),
                                    to_text(*size, size_names_), describe(given)));
  }
  const GraphValue& expected = graph_.value(*input.value());
  if (given.isTensor() && given.toTensor().defined() &&
      given.toTensor().scalar_type() == expected.dtype &&
      given.toTensor().dim() == static_cast<int64_t>(expected.shape.size())) {
    return;
  }
  throw MetadataError(
      fmt::format("{}: expected {}, got {}", leaf_path(leaf), expected_at(leaf), describe(given)));
}

std::vector<int64_t> InputBinding::sizes(std::span<const c10::IValue> leaves) const {
  const std::vector<GraphSize>& all = graph_.parts().sizes;
  std::vector<int64_t> result(all.size(), 0);
  for (const SizeStep& step : steps_) {
    const c10::IValue& leaf = leaves[step.leaf];
    std::optional<int64_t> solved;
    if (step.dim == SizeStep::kIsNumber) {
      solved = leaf.toInt();
    } else {
      solved = solve(shape_at(step), step.size,
                     leaf.toTensor().size(static_cast<int64_t>(step.dim)), result);
    }
    if (!solved) {
      throw MetadataError(fmt::format("{}: expected {}, got {}", leaf_path(step.leaf),
                                      expected_at(step.leaf), describe(leaf)));
    }
    const auto size = static_cast<std::size_t>(step.size);
    if (*solved < all[size].least) {
      throw MetadataError(fmt::format("{}: {} is {}, expected at least {}", dimension_of(step),
                                      all[size].name, *solved, all[size].least));
    }
    if (*solved > all[size].greatest) {
      throw MetadataError(fmt::format(
          "{}: {} is {}, expected at most {}, {}", dimension_of(step), all[size].name, *solved,
          all[size].greatest,
          graph_.parts().is_exported
              ? "for which the model was exported"
              : "the largest size that was tried; capture it with a larger SizeSpec::probe"));
    }
    result[size] = *solved;
  }
  // In this order: rules need the sizes, shapes and guards need the rules.
  add_rules(result);
  check_shapes(leaves, result);
  check_guards(result);
  return result;
}

/// `args[0], dimension 1`. If the input is the size itself, only its path.
std::string InputBinding::dimension_of(const SizeStep& step) const {
  std::string path = leaf_path(step.leaf);
  if (!graph_.parts().is_exported || step.dim == SizeStep::kIsNumber) return path;
  return fmt::format("{}, dimension {}", path, step.dim);
}

void InputBinding::add_rules(std::vector<int64_t>& sizes) const {
  const std::vector<GraphSize>& all = graph_.parts().sizes;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!all[i].rule || (known_ >> i & 1) == 0) continue;
    try {
      sizes[i] = all[i].rule->at(sizes);
    } catch (const Error& error) {
      throw MetadataError(fmt::format("{} = {}: {}", all[i].name,
                                      to_text(*all[i].rule, size_names_), error.what()));
    }
  }
}

void InputBinding::check_guards(std::span<const int64_t> sizes) const {
  for (const GraphGuard& guard : graph_.parts().guards) {
    if ((guard.holds.sizes() & ~known_) != 0 || guard.holds.at(sizes) != 0) continue;
    std::string where;
    for (const SizeStep& step : steps_) {
      where += fmt::format("{}{} = {}", where.empty() ? "" : ", ",
                           size_names_[static_cast<std::size_t>(step.size)],
                           sizes[static_cast<std::size_t>(step.size)]);
    }
    throw MetadataError(
        fmt::format("the model was exported for inputs with {}, got {}", guard.text, where));
  }
}

void InputBinding::check_shapes(std::span<const c10::IValue> leaves,
                                std::span<const int64_t> sizes) const {
  for (std::size_t leaf = 0; leaf < leaves.size(); ++leaf) {
    const ValueId* value = graph_.parts().inputs[leaf].value();
    if (value == nullptr) continue;
    const GraphValue& expected = graph_.value(*value);
    const std::vector<SizeExpr>& shape = expected.shape;
    const auto given = leaves[leaf].toTensor().sizes();
    for (std::size_t dim = 0; dim < shape.size(); ++dim) {
      if ((expected.open_dims >> dim & 1) != 0 || (shape[dim].sizes() & ~known_) != 0 ||
          shape[dim].at(sizes) == given[dim]) {
        continue;
      }
      std::string where;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        if ((shape[dim].sizes() >> i & 1) != 0) {
          where +=
              fmt::format("{}{} = {}", where.empty() ? " with " : ", ", size_names_[i], sizes[i]);
        }
      }
      throw MetadataError(fmt::format("{}: expected {}{}, got {}", leaf_path(leaf),
                                      expected_at(leaf), where, describe(leaves[leaf])));
    }
  }
}

Arguments arguments_of_leaves(const Graph& graph, std::vector<c10::IValue> leaves) {
  const GraphParts& parts = graph.parts();
  const std::span<c10::IValue> all(leaves);
  const std::size_t positional = parts.args.num_leaves();
  const c10::IValue args = tree::unflatten(parts.args, all.first(positional));
  const c10::IValue kwargs = tree::unflatten(parts.kwargs, all.subspan(positional));
  Arguments result;
  for (const c10::IValue& value : args.toTupleRef().elements()) result.args.push_back(value);
  for (const auto& entry : kwargs.toGenericDict()) {
    result.kwargs.set(entry.key().toStringRef(), entry.value());
  }
  return result;
}

}  // namespace stagecraft
