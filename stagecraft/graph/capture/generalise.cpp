#include "stagecraft/graph/capture/generalise.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include <ATen/core/Tensor.h>

#include "stagecraft/base/check.h"
#include "stagecraft/graph/capture/trace.h"
#include "stagecraft/graph/effects.h"
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

/// Joins what several traces say into one. `traces[0]` is the model for the rest.
class Generaliser {
 public:
  /// Where numbers may not differ, the first of two traces is what a graph says.
  Generaliser(std::span<const GraphParts> traces, std::vector<GraphSize> sizes, bool may_differ)
      : traces_(traces), sizes_(std::move(sizes)), may_differ_(may_differ) {
    for (const GraphSize& size : sizes_) {
      low_.push_back(size.example);
      names_.push_back(size.name);
    }
  }

  GraphParts run() {
    check_structure();
    GraphParts result = traces_[0];
    for (std::size_t i = 0; i < result.nodes.size(); ++i) {
      for (std::size_t a = 0; a < result.nodes[i].arguments.size(); ++a) {
        where_ = place_of(i);
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
    check_states();
    result.sizes = std::move(sizes_);
    return result;
  }

 private:
  using Pick = std::function<const Argument&(const GraphParts&)>;

  std::string place_of(std::size_t node) const {
    const GraphNode& n = traces_[0].nodes[node];
    std::string place = fmt::format("{} ({})", n.name, toString(n.op));
    if (!n.scope.empty()) place += " in " + n.scope;
    return place;
  }

  std::string corner(std::size_t trace) const {
    const bool is_graph = !may_differ_ && trace == 0;
    if (!may_differ_) trace = 0;
    std::string text;
    for (std::size_t i = 0; i < low_.size(); ++i) {
      if (i > 0) text += ", ";
      text += fmt::format("{} = {}", names_[i], low_[i] + static_cast<int64_t>(trace >> i & 1));
    }
    if (is_graph) text += " (as it follows from other sizes)";
    return text;
  }

  [[noreturn]] void fail(std::size_t trace, const std::string& here,
                         const std::string& there) const {
    throw CaptureError(fmt::format("{}: {} cannot follow the sizes: at {} it is {}, at {} it is {}",
                                   where_, what_, corner(0), here, corner(trace), there));
  }

  void check_structure() {
    for (std::size_t t = 1; t < traces_.size(); ++t) {
      const auto& here = traces_[0].nodes;
      const auto& there = traces_[t].nodes;
      for (std::size_t i = 0; i < std::max(here.size(), there.size()); ++i) {
        if (i < here.size() && i < there.size() && here[i].op == there[i].op &&
            here[i].is_no_grad == there[i].is_no_grad && here[i].autocast == there[i].autocast &&
            here[i].results.size() == there[i].results.size()) {
          continue;
        }
        const auto name = [&](const std::vector<GraphNode>& nodes) {
          return i < nodes.size() ? toString(nodes[i].op) : std::string("the end");
        };
        throw CaptureError(fmt::format(
            "the model calls other operators at other sizes: behind {} comes {} at {}, {} at {}; "
            "branches and loops on a size cannot be captured",
            i == 0 ? std::string("the beginning") : place_of(i - 1), name(here), corner(0),
            name(there), corner(t)));
      }
      for (std::size_t i = 0; i < here.size(); ++i) {
        const std::size_t made = num_results(here[i]);
        const std::size_t made_there = num_results(there[i]);
        require<CaptureError>(
            made == made_there,
            "{}: it makes {} tensors at {}, {} at {}; a list whose length follows a "
            "size cannot be captured",
            place_of(i), made, corner(0), made_there, corner(t));
      }
      require<CaptureError>(traces_[0].output == traces_[t].output &&
                                traces_[0].values.size() == traces_[t].values.size() &&
                                traces_[0].states.size() == traces_[t].states.size(),
                            "the model returns another structure at other sizes: {} tensors in all "
                            "at {}, {} at {}",
                            traces_[0].values.size(), corner(0), traces_[t].values.size(),
                            corner(t));
    }
  }

  static std::size_t num_results(const GraphNode& node) {
    std::size_t count = 0;
    for (const Argument& result : node.results) for_each_value(result, [&](ValueId) { ++count; });
    return count;
  }

  Argument join(const Pick& pick, const c10::TypePtr& type) const {
    const Argument& first = pick(traces_[0]);
    if (const ValueId* value = first.value()) {
      for (std::size_t t = 1; t < traces_.size(); ++t) {
        const ValueId* other = pick(traces_[t]).value();
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
      return "%" + traces_[trace].values[value->position()].name;
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
        if (!may_differ_ || !all[t].isIntList() || all[t].toListRef().size() != count) {
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
      if (!is_number || !may_differ_)
        fail(t == 0 ? 1 : t, describe(first), describe(all[t == 0 ? 1 : t]));
      corners.push_back(all[t].toInt());
    }
    return join_numbers(corners);
  }

  Argument join_numbers(std::span<const int64_t> corners) const {
    SizeExpr size = SizeExpr::through(low_, corners);
    if (size.is_number()) return Argument::fixed(size.number());
    return size;
  }

  /// Of each value, the first one that it shares memory with.
  static std::vector<std::size_t> sharing(const GraphParts& parts) {
    std::unordered_map<int32_t, std::size_t> first;
    std::vector<std::size_t> result;
    for (std::size_t v = 0; v < parts.values.size(); ++v) {
      const int32_t memory = parts.values[v].memory;
      result.push_back(memory < 0 ? v : first.try_emplace(memory, v).first->second);
    }
    return result;
  }

  /// Which values are in memory that an operator changes.
  static std::vector<bool> changed(const GraphParts& parts) {
    std::unordered_set<int32_t> memory;
    for (const GraphNode& node : parts.nodes) {
      for (const std::size_t i : written_arguments(*find_schema(node.op), node.arguments)) {
        for_each_value(node.arguments[i], [&](ValueId value) {
          memory.insert(parts.values[value.position()].memory);
        });
      }
    }
    std::vector<bool> result;
    for (const GraphValue& value : parts.values) {
      result.push_back(value.memory >= 0 && memory.contains(value.memory));
    }
    return result;
  }

  // Whether reshape and its like are views can depend on the size. Where the memory is changed,
  // what can be dropped and where the graph may be cut depends on it.
  void check_sharing() const {
    const std::vector<std::size_t> here = sharing(traces_[0]);
    const std::vector<bool> changed_here = changed(traces_[0]);
    for (std::size_t t = 1; t < traces_.size(); ++t) {
      const std::vector<std::size_t> there = sharing(traces_[t]);
      const std::vector<bool> changed_there = changed(traces_[t]);
      for (std::size_t v = 0; v < here.size(); ++v) {
        require<CaptureError>(
            here[v] == there[v] || (!changed_here[v] && !changed_there[v]),
            "%{}: it is a view at one size and a copy at another ({} and {}), and "
            "is changed in place",
            traces_[0].values[v].name, corner(0), corner(t));
      }
    }
  }

  void join_values(GraphParts& result) const {
    check_sharing();
    for (std::size_t v = 0; v < result.values.size(); ++v) {
      GraphValue& value = result.values[v];
      for (std::size_t t = 1; t < traces_.size(); ++t) {
        const GraphValue& other = traces_[t].values[v];
        require<CaptureError>(
            other.dtype == value.dtype && other.shape.size() == value.shape.size(),
            "%{}: it is {} at {}, {} at {}", value.name, describe(value, names_), corner(0),
            describe(other, names_), corner(t));
      }
      for (std::size_t d = 0; d < value.shape.size(); ++d) {
        std::vector<int64_t> corners;
        for (const GraphParts& trace : traces_)
          corners.push_back(trace.values[v].shape[d].number());
        if ((value.open_dims >> d & 1) != 0) {
          value.shape[d] = SizeExpr(corners[0]);
          continue;
        }
        if (may_differ_) {
          value.shape[d] = SizeExpr::through(low_, corners);
          continue;
        }
        require<CaptureError>(
            corners[0] == corners[1],
            "%{}: a size of it does not follow: dimension {} is {} at {}, but {} at {}", value.name,
            d, corners[1], corner(1), corners[0], corner(0));
      }
    }
  }

  void check_states() const {
    for (std::size_t s = 0; s < traces_[0].states.size(); ++s) {
      const GraphState& here = traces_[0].states[s];
      for (std::size_t t = 1; t < traces_.size(); ++t) {
        const at::Tensor& there = traces_[t].states[s].tensor;
        require<CaptureError>(here.tensor.is_same(there) || tree::leaf_equal(here.tensor, there),
                              "%{}: the model reads another constant at other sizes: {} at {}, {} "
                              "at {}; make it with operators",
                              traces_[0].values[here.value.position()].name, describe(here.tensor),
                              corner(0), describe(there), corner(t));
      }
    }
  }

  std::span<const GraphParts> traces_;
  std::vector<GraphSize> sizes_;
  bool may_differ_;
  std::vector<int64_t> low_;
  std::vector<std::string> names_;
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
  return Generaliser(traces, std::move(sizes), true).run();
}

void check_generalised(const GraphParts& graph, const GraphParts& trace,
                       std::span<const int64_t> sizes) {
  std::vector<GraphSize> here = graph.sizes;
  for (std::size_t i = 0; i < here.size(); ++i) here[i].example = sizes[i];
  std::vector<GraphParts> both = {at_sizes(graph, sizes), trace};
  const auto is_same_op = [](const GraphNode& a, const GraphNode& b) { return a.op == b.op; };
  if (!std::ranges::equal(both[0].nodes, both[1].nodes, is_same_op)) {
    for (GraphParts& parts : both) parts = compact(without_whole_slices(std::move(parts)));
  }
  Generaliser(both, std::move(here), false).run();
}

void open_dims(GraphParts& trace, const GraphParts& other) {
  for (std::size_t i = 0; i < std::min(trace.nodes.size(), other.nodes.size()); ++i) {
    const GraphNode& here = trace.nodes[i];
    const GraphNode& there = other.nodes[i];
    bool is_same = here.op == there.op;
    for (std::size_t a = 0; is_same && a < here.arguments.size(); ++a) {
      is_same = is_same_argument(here.arguments[a], there.arguments[a]);
    }
    if (is_same) continue;
    throw CaptureError(fmt::format(
        "{} ({}{}): it follows a number that was read from a shape which depends on elements, as "
        "that of nonzero() or of indexing by a mask; a graph would freeze it",
        here.name, toString(here.op), here.scope.empty() ? "" : " in " + here.scope));
  }
  for (std::size_t v = 0; v < std::min(trace.values.size(), other.values.size()); ++v) {
    GraphValue& value = trace.values[v];
    const std::vector<SizeExpr>& shape = other.values[v].shape;
    for (std::size_t d = 0; d < value.shape.size() && d < shape.size(); ++d) {
      if (d < 32 && value.shape[d] != shape[d]) value.open_dims |= uint32_t{1} << d;
    }
  }
}

}  // namespace stagecraft
