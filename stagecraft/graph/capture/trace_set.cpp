#include "stagecraft/graph/capture/trace_set.h"

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>

#include "stagecraft/base/check.h"
#include "stagecraft/graph/capture/trace.h"
#include "stagecraft/graph/effects.h"
#include "stagecraft/graph/op_types.h"
#include "stagecraft/tree/describe.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {

namespace {

std::size_t num_results(const GraphNode& node) {
  std::size_t count = 0;
  for (const Argument& result : node.results) for_each_value(result, [&](ValueId) { ++count; });
  return count;
}

/// For each value, the first value that it shares memory with.
IndexedVector<ValueId, ValueId> sharing_in(const GraphParts& parts) {
  std::unordered_map<int32_t, ValueId> first;
  IndexedVector<ValueId, ValueId> result;
  for (ValueId v(0); parts.values.contains(v); ++v) {
    const int32_t memory = parts.values[v].memory;
    result.push_back(memory < 0 ? v : first.try_emplace(memory, v).first->second);
  }
  return result;
}

/// Whether each value is in memory that an operator changes.
IndexedVector<ValueId, bool> changed_in(const GraphParts& parts) {
  std::unordered_set<int32_t> memory;
  for (const GraphNode& node : parts.nodes) {
    for (const std::size_t i : written_arguments(*find_schema(node.op), node.arguments)) {
      for_each_value(node.arguments[i],
                     [&](ValueId value) { memory.insert(parts.values[value].memory); });
    }
  }
  IndexedVector<ValueId, bool> result;
  for (const GraphValue& value : parts.values) {
    result.push_back(value.memory >= 0 && memory.contains(value.memory));
  }
  return result;
}

}  // namespace

TraceSet::TraceSet(std::span<const GraphParts> traces, std::span<const GraphSize> sizes,
                   bool may_differ)
    : traces_(traces), may_differ_(may_differ) {
  for (const GraphSize& size : sizes) {
    low_.push_back(size.example);
    names_.push_back(size.name);
  }
}

std::string TraceSet::place_of(std::size_t node) const {
  const GraphNode& n = traces_[0].nodes[node];
  std::string place = fmt::format("{} ({})", n.name, toString(n.op));
  if (!n.scope.empty()) place += " in " + n.scope;
  return place;
}

std::string TraceSet::corner(std::size_t trace) const {
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

void TraceSet::check_structure() const {
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
      throw CaptureError(
          fmt::format("the model calls different operators at different sizes: after {} comes {} "
                      "at {}, {} at {}; branches and loops on a size cannot be captured",
                      i == 0 ? std::string("the beginning") : place_of(i - 1), name(here),
                      corner(0), name(there), corner(t)));
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
                          "the model returns a different structure at different sizes: {} tensors "
                          "in total at {}, {} at {}",
                          traces_[0].values.size(), corner(0), traces_[t].values.size(), corner(t));
  }
}

void TraceSet::check_sharing() const {
  const IndexedVector<ValueId, ValueId> here = sharing_in(traces_[0]);
  const IndexedVector<ValueId, bool> changed_here = changed_in(traces_[0]);
  for (std::size_t t = 1; t < traces_.size(); ++t) {
    const IndexedVector<ValueId, ValueId> there = sharing_in(traces_[t]);
    const IndexedVector<ValueId, bool> changed_there = changed_in(traces_[t]);
    for (ValueId v(0); here.contains(v); ++v) {
      // reshape() is a view at some sizes and a copy at others. That matters only if one of the two
      // is written to.
      require<CaptureError>(here[v] == there[v] || (!changed_here[v] && !changed_there[v]),
                            "%{}: it is a view at one size and a copy at a different one ({} and "
                            "{}), and is changed in place",
                            traces_[0].values[v].name, corner(0), corner(t));
    }
  }
}

void TraceSet::check_states() const {
  for (std::size_t s = 0; s < traces_[0].states.size(); ++s) {
    const GraphState& here = traces_[0].states[s];
    for (std::size_t t = 1; t < traces_.size(); ++t) {
      const at::Tensor& there = traces_[t].states[s].tensor;
      // A constant may be made anew in each run, for example from a vector. Then its elements must
      // be equal.
      require<CaptureError>(here.tensor.is_same(there) || tree::leaf_equal(here.tensor, there),
                            "%{}: the model reads a different constant at different sizes: {} at "
                            "{}, {} at {}; make it with operators",
                            traces_[0].values[here.value].name, describe(here.tensor), corner(0),
                            describe(there), corner(t));
    }
  }
}

}  // namespace stagecraft
