#include "stagecraft/graph/capture/generalise.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include <ATen/core/Tensor.h>

#include "stagecraft/base/check.h"
#include "stagecraft/graph/capture/trace.h"
#include "stagecraft/graph/capture/trace_set.h"
#include "stagecraft/graph/graph_text.h"
#include "stagecraft/graph/op_types.h"
#include "stagecraft/graph/passes/run_pass.h"
#include "stagecraft/graph/passes/whole_slices.h"
#include "stagecraft/tree/describe.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {

namespace {

bool is_equal_fixed(const c10::IValue& a, const c10::IValue& b) {
  if (a.isGenerator() || b.isGenerator()) {
    return a.isGenerator() && b.isGenerator() && a.toGenerator() == b.toGenerator();
  }
  return tree::equal(a, b);
}

bool is_same_argument(const Argument& a, const Argument& b) {
  if (a.value() != nullptr) return b.value() != nullptr && *a.value() == *b.value();
  if (const Argument::List* list = a.list()) {
    return b.list() != nullptr && std::ranges::equal(*list, *b.list(), is_same_argument);
  }
  return b.fixed_value() != nullptr && is_equal_fixed(*a.fixed_value(), *b.fixed_value());
}

/// Joins traces into one graph. The result has the structure of trace 0.
class Generaliser {
 public:
  explicit Generaliser(TraceSet traces) : traces_(std::move(traces)) {}

  GraphParts run() {
    // First: what follows compares node i with node i.
    traces_.check_structure();
    GraphParts result = traces_[0];
    for (std::size_t i = 0; i < result.nodes.size(); ++i) {
      for (std::size_t a = 0; a < result.nodes[i].arguments.size(); ++a) {
        where_ = traces_.place_of(i);
        const c10::FunctionSchema* schema = find_schema(result.nodes[i].op);
        const c10::Argument& formal = schema->arguments()[a];
        what_ = fmt::format("argument '{}'", formal.name());
        result.nodes[i].arguments[a] =
            join([&](const GraphParts& t) -> const Argument& { return t.nodes[i].arguments[a]; },
                 formal.real_type());
      }
    }
    where_ = "the output of the model";
    for (std::size_t i = 0; i < result.outputs.size(); ++i) {
      what_ = result.output.leaf_path(i, "output");
      result.outputs[i] = join([&](const GraphParts& t) -> const Argument& { return t.outputs[i]; },
                               c10::AnyType::get());
    }
    join_values(result);
    traces_.check_states();
    return result;
  }

 private:
  using Pick = std::function<const Argument&(const GraphParts&)>;

  [[noreturn]] void fail(std::size_t trace, const std::string& here,
                         const std::string& there) const {
    throw CaptureError(fmt::format("{}: {} cannot follow the sizes: at {} it is {}, at {} it is {}",
                                   where_, what_, traces_.corner(0), here, traces_.corner(trace),
                                   there));
  }

  Argument join(const Pick& pick, const c10::TypePtr& type) const {
    const Argument& first = pick(traces_[0]);
    if (const ValueId* value = first.value()) {
      for (std::size_t t = 1; t < traces_.size(); ++t) {
        const ValueId* other = pick(traces_[t]).value();
        // Values have the same numbers in all traces, because the traces have the same nodes
        // (check_structure).
        if (other == nullptr || *other != *value)
          fail(t, name(0, first), name(t, pick(traces_[t])));
      }
      return first;
    }
    if (const Argument::List* list = first.list()) {
      Argument::List result;
      for (std::size_t t = 1; t < traces_.size(); ++t) {
        const Argument::List* other = pick(traces_[t]).list();
        const std::size_t there = other == nullptr ? 0 : other->size();
        if (there != list->size()) {
          fail(t, fmt::format("a list of {}", list->size()), fmt::format("a list of {}", there));
        }
      }
      for (std::size_t i = 0; i < list->size(); ++i) {
        result.push_back(join(
            [&](const GraphParts& t) -> const Argument& { return (*pick(t).list())[i]; }, type));
      }
      return result;
    }
    return join_fixed(pick, type);
  }

  std::string name(std::size_t trace, const Argument& argument) const {
    if (const ValueId* value = argument.value()) {
      return "%" + traces_[trace].values[*value].name;
    }
    return argument.fixed_value() != nullptr ? describe(*argument.fixed_value()) : "a list";
  }

  Argument join_fixed(const Pick& pick, const c10::TypePtr& type) const {
    std::vector<c10::IValue> all;
    bool is_same = true;
    for (std::size_t t = 0; t < traces_.size(); ++t) {
      const c10::IValue* fixed = pick(traces_[t]).fixed_value();
      if (fixed == nullptr) fail(t, name(0, pick(traces_[0])), name(t, pick(traces_[t])));
      all.push_back(*fixed);
      is_same = is_same && is_equal_fixed(all.front(), *fixed);
    }
    if (is_same) return pick(traces_[0]);
    const c10::IValue& first = all.front();
    if (first.isIntList()) {
      Argument::List list;
      const std::size_t count = first.toListRef().size();
      for (std::size_t t = 1; t < all.size(); ++t) {
        if (!traces_.may_differ() || !all[t].isIntList() || all[t].toListRef().size() != count) {
          fail(t, describe(first), describe(all[t]));
        }
      }
      for (std::size_t i = 0; i < count; ++i) {
        std::vector<int64_t> corners;
        for (const c10::IValue& value : all) corners.push_back(value.toListRef()[i].toInt());
        list.push_back(join_numbers(corners));
      }
      return list;
    }
    std::vector<int64_t> corners;
    for (std::size_t t = 0; t < all.size(); ++t) {
      const bool is_number =
          all[t].isInt() && (takes_integer(type) || type->kind() == c10::TypeKind::AnyType);
      if (!is_number || !traces_.may_differ())
        fail(t == 0 ? 1 : t, describe(first), describe(all[t == 0 ? 1 : t]));
      corners.push_back(all[t].toInt());
    }
    return join_numbers(corners);
  }

  Argument join_numbers(std::span<const int64_t> corners) const {
    // Exactly one expression goes through the corners, right or wrong. The far sizes decide.
    SizeExpr size = SizeExpr::through(traces_.low(), corners);
    if (size.is_number()) return Argument::fixed(size.number());
    return size;
  }

  void join_values(GraphParts& result) const {
    traces_.check_sharing();
    for (ValueId v(0); result.values.contains(v); ++v) {
      GraphValue& value = result.values[v];
      for (std::size_t t = 1; t < traces_.size(); ++t) {
        const GraphValue& other = traces_[t].values[v];
        require<CaptureError>(
            other.dtype == value.dtype && other.shape.size() == value.shape.size(),
            "%{}: it is {} at {}, {} at {}", value.name, describe(value, traces_.size_names()),
            traces_.corner(0), describe(other, traces_.size_names()), traces_.corner(t));
      }
      for (std::size_t d = 0; d < value.shape.size(); ++d) {
        std::vector<int64_t> corners;
        for (std::size_t t = 0; t < traces_.size(); ++t) {
          corners.push_back(traces_[t].values[v].shape[d].number());
        }
        // Its size at the corners is a coincidence of the elements.
        if ((value.open_dims >> d & 1) != 0) {
          value.shape[d] = SizeExpr(corners[0]);
          continue;
        }
        // At the corners numbers may differ and are fitted. At the far sizes the graph and the
        // trace must be equal.
        if (traces_.may_differ()) {
          value.shape[d] = SizeExpr::through(traces_.low(), corners);
          continue;
        }
        require<CaptureError>(
            corners[0] == corners[1],
            "%{}: a dimension does not follow the sizes: dimension {} is {} at {}, but {} at {}",
            value.name, d, corners[1], traces_.corner(1), corners[0], traces_.corner(0));
      }
    }
  }

  TraceSet traces_;
  std::string where_;
  std::string what_;
};

Argument at_sizes(const Argument& argument, std::span<const int64_t> sizes) {
  if (const SizeExpr* size = argument.size()) return Argument::fixed(size->at(sizes));
  const Argument::List* list = argument.list();
  if (list == nullptr) return argument;
  Argument::List elements;
  std::vector<int64_t> numbers;
  for (const Argument& each : *list) {
    elements.push_back(at_sizes(each, sizes));
    const c10::IValue* fixed = elements.back().fixed_value();
    if (fixed != nullptr && fixed->isInt()) numbers.push_back(fixed->toInt());
  }
  // In the form of a trace, so that the two can be compared: there a list of numbers is one fixed
  // value.
  if (!list->empty() && numbers.size() == list->size()) return Argument::fixed(numbers);
  return elements;
}

GraphParts at_sizes(GraphParts parts, std::span<const int64_t> sizes) {
  for (GraphNode& node : parts.nodes) {
    for (Argument& argument : node.arguments) argument = at_sizes(argument, sizes);
  }
  for (Argument& output : parts.outputs) output = at_sizes(output, sizes);
  for (GraphValue& value : parts.values) {
    for (SizeExpr& size : value.shape) size = SizeExpr(size.at(sizes));
  }
  return parts;
}

}  // namespace

GraphParts generalise(std::span<const GraphParts> traces, std::vector<GraphSize> sizes) {
  GraphParts result = Generaliser(TraceSet(traces, sizes, true)).run();
  result.sizes = std::move(sizes);
  return result;
}

void check_generalised(const GraphParts& graph, const GraphParts& trace,
                       std::span<const int64_t> sizes) {
  std::vector<GraphSize> here = graph.sizes;
  for (std::size_t i = 0; i < here.size(); ++i) here[i].example = sizes[i];
  std::vector<GraphParts> both = {at_sizes(graph, sizes), trace};
  const auto is_same_op = [](const GraphNode& a, const GraphNode& b) { return a.op == b.op; };
  // Tensor indexing makes slices of a whole dimension at some sizes only. If the operators differ,
  // both sides are compared without such slices.
  if (!std::ranges::equal(both[0].nodes, both[1].nodes, is_same_op)) {
    for (GraphParts& parts : both) parts = compact(without_whole_slices(std::move(parts)));
  }
  Generaliser(TraceSet(both, here, false)).run();
}

void open_dims(GraphParts& trace, const GraphParts& other) {
  // Up to the shorter one: the model may have failed on the different elements.
  for (std::size_t i = 0; i < std::min(trace.nodes.size(), other.nodes.size()); ++i) {
    const GraphNode& here = trace.nodes[i];
    const GraphNode& there = other.nodes[i];
    bool is_same = here.op == there.op;
    for (std::size_t a = 0; is_same && a < here.arguments.size(); ++a) {
      is_same = is_same_argument(here.arguments[a], there.arguments[a]);
    }
    if (is_same) continue;
    throw CaptureError(fmt::format(
        "{} ({}{}): it depends on a number that was read from a shape that depends on elements, "
        "such as that of nonzero() or of indexing by a mask; a graph would freeze the number",
        here.name, toString(here.op), here.scope.empty() ? "" : " in " + here.scope));
  }
  for (ValueId v(0); trace.values.contains(v) && other.values.contains(v); ++v) {
    GraphValue& value = trace.values[v];
    const std::vector<SizeExpr>& shape = other.values[v].shape;
    for (std::size_t d = 0; d < value.shape.size() && d < shape.size(); ++d) {
      if (d < 32 && value.shape[d] != shape[d]) value.open_dims |= uint32_t{1} << d;
    }
  }
}

}  // namespace stagecraft
