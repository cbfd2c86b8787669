#include "stagecraft/graph/capture.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <numeric>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/flip.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/remainder.h>
#include <c10/core/GradMode.h>

#include "stagecraft/base/check.h"
#include "stagecraft/graph/effects.h"
#include "stagecraft/graph/generalise.h"
#include "stagecraft/graph/op_types.h"
#include "stagecraft/graph/program.h"
#include "stagecraft/graph/saved_state.h"
#include "stagecraft/tree/describe.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {

namespace {

/// The example, and how to make others of it.
class Inputs {
 public:
  Inputs(const Arguments& example, const std::vector<SizeSpec>& specs) : example_(example) {
    std::vector<Leaf> leaves = tensors();
    for (const SizeSpec& spec : specs) add_size(spec, leaves);
  }

  const std::vector<GraphSize>& sizes() const { return sizes_; }
  int64_t probe(std::size_t size) const { return probes_[size]; }

  Arguments at(std::span<const int64_t> sizes) const {
    Arguments result;
    auto resize = [&](const std::string& path, const c10::IValue& leaf) {
      return resized(path, leaf, sizes);
    };
    for (std::size_t i = 0; i < example_.args.size(); ++i) {
      result.args.push_back(
          tree::map_with_path(example_.args[i], fmt::format("args[{}]", i), resize));
    }
    for (const auto& [name, value] : example_.kwargs) {
      result.kwargs.set(name,
                        tree::map_with_path(value, fmt::format("kwargs[\"{}\"]", name), resize));
    }
    return result;
  }

 private:
  struct Leaf {
    std::string path;
    at::Tensor tensor;
  };
  struct Place {
    std::string path;
    int64_t dim = 0;
    std::size_t size = 0;
  };

  std::vector<Leaf> tensors() const {
    std::vector<Leaf> leaves;
    auto add = [&](const std::string& path, const c10::IValue& leaf) {
      if (leaf.isTensor() && leaf.toTensor().defined()) leaves.push_back({path, leaf.toTensor()});
      return leaf;
    };
    for (std::size_t i = 0; i < example_.args.size(); ++i) {
      tree::map_with_path(example_.args[i], fmt::format("args[{}]", i), add);
    }
    for (const auto& [name, value] : example_.kwargs) {
      tree::map_with_path(value, fmt::format("kwargs[\"{}\"]", name), add);
    }
    return leaves;
  }

  void add_size(const SizeSpec& spec, const std::vector<Leaf>& leaves) {
    require<ArgumentError>(sizes_.size() < SizeExpr::kMaxSizes,
                           "expected at most {} sizes that change", SizeExpr::kMaxSizes);
    const std::size_t number = sizes_.size();
    int64_t example = -1;
    auto add = [&](const Leaf& leaf, int64_t dim) {
      const int64_t there = leaf.tensor.size(dim);
      require<ArgumentError>(example < 0 || there == example,
                             "size {}: it is {} at {}, dimension {}, but {} before", spec.name,
                             there, leaf.path, dim, example);
      for (const Place& other : places_) {
        if (other.path != leaf.path || other.dim != dim) continue;
        throw ArgumentError(fmt::format(
            "{}, dimension {}: expected one size, got {} and {}", leaf.path, dim,
            other.size < sizes_.size() ? sizes_[other.size].name : spec.name, spec.name));
      }
      example = there;
      places_.push_back({leaf.path, dim, number});
    };
    for (const SizeSpec::Place& place : spec.places) {
      const auto found = std::ranges::find(leaves, place.input, &Leaf::path);
      require<ArgumentError>(found != leaves.end(), "size {}: there is no tensor at {}", spec.name,
                             place.input);
      const int64_t dims = found->tensor.dim();
      require<ArgumentError>(place.dim >= -dims && place.dim < dims,
                             "size {}: {} has {} dimensions, got dimension {}", spec.name,
                             place.input, dims, place.dim);
      add(*found, place.dim < 0 ? place.dim + dims : place.dim);
    }
    if (spec.places.empty()) {
      for (const Leaf& leaf : leaves) {
        const bool is_batch =
            leaf.tensor.dim() > 0 && (example < 0 || leaf.tensor.size(0) == example);
        if (is_batch) add(leaf, 0);
      }
    }
    if (example < 0) return;  // no tensor has a dimension: nothing changes
    require<ArgumentError>(example > 0, "size {}: expected at least 1 in the example, got 0",
                           spec.name);
    const int64_t probe = spec.probe.value_or(2 * example + 3);
    require<ArgumentError>(probe > 0 && probe != example && probe != example + 1,
                           "size {}: expected a probe other than {} and {}, got {}", spec.name,
                           example, example + 1, probe);
    sizes_.push_back({.name = spec.name, .example = example, .least = 1});
    probes_.push_back(probe);
  }

  c10::IValue resized(const std::string& path, const c10::IValue& leaf,
                      std::span<const int64_t> sizes) const {
    if (!leaf.isTensor() || !leaf.toTensor().defined()) return leaf;
    const c10::NoGradGuard no_grad;
    at::Tensor tensor = leaf.toTensor();
    for (const Place& place : places_) {
      const int64_t wanted = sizes[place.size];
      if (place.path != path || tensor.size(place.dim) == wanted) continue;
      const auto rows =
          at::arange(wanted, tensor.options().dtype(at::kLong)).remainder(tensor.size(place.dim));
      tensor = at::index_select(tensor, place.dim, rows);
    }
    return tensor;
  }

  Arguments example_;
  std::vector<GraphSize> sizes_;
  std::vector<int64_t> probes_;
  std::vector<Place> places_;
};

/// Everything that a run of the graph changes outside of it.
void save_what_changes(const GraphParts& parts, SavedState& saved) {
  saved.save_default_generator(c10::kCPU);
  std::unordered_set<int32_t> memory;
  std::unordered_set<int32_t> values;
  for (const GraphNode& node : parts.nodes) {
    for (const std::size_t i : written_arguments(*find_schema(node.op), node.arguments)) {
      for_each_value(node.arguments[i], [&](ValueId value) {
        values.insert(value.value());
        memory.insert(parts.values[static_cast<std::size_t>(value.value())].memory);
      });
    }
    for (const Argument& argument : node.arguments) {
      const c10::IValue* fixed = argument.fixed_value();
      if (fixed != nullptr && fixed->isGenerator()) saved.save(fixed->toGenerator());
    }
  }
  for (const GraphValue& value : parts.values) {
    if (!value.device.is_cpu()) saved.save_default_generator(value.device);
  }
  for (const GraphState& state : parts.states) {
    const GraphValue& value = parts.values[static_cast<std::size_t>(state.value.value())];
    if (values.contains(state.value.value()) ||
        (value.memory >= 0 && memory.contains(value.memory))) {
      saved.save(state.tensor);
    }
  }
}

c10::IValue copied(const c10::IValue& tree) {
  return tree::map(tree, [](const c10::IValue& leaf) -> c10::IValue {
    if (!leaf.isTensor() || !leaf.toTensor().defined()) return leaf;
    return leaf.toTensor().detach().clone(at::MemoryFormat::Preserve);
  });
}

/// Other values than the example's, of which the rows were made: what a model has read of them by
/// pointer shows.
c10::IValue varied(const c10::IValue& tree) {
  return tree::map(tree, [](const c10::IValue& leaf) -> c10::IValue {
    if (!leaf.isTensor() || !leaf.toTensor().defined()) return leaf;
    const at::Tensor& given = leaf.toTensor();
    std::vector<int64_t> dims(static_cast<std::size_t>(given.dim()));
    std::iota(dims.begin(), dims.end(), 0);
    at::Tensor mine = given.detach().flip(dims);
    if (!mine.is_floating_point() && !mine.is_complex()) return mine;
    return mine.mul(0.9375).requires_grad_().clone();
  });
}

Arguments varied(const Arguments& arguments) {
  Arguments result;
  for (const c10::IValue& value : arguments.args) result.args.push_back(varied(value));
  for (const auto& [name, value] : arguments.kwargs) result.kwargs.set(name, varied(value));
  return result;
}

void check_replay(const TracedModel& model, const Graph& graph, const Arguments& arguments) {
  const c10::AutoGradMode with_grad(true);
  c10::IValue expected;
  c10::IValue got;
  {
    SavedState saved;
    save_what_changes(graph.parts(), saved);
    const Arguments mine = varied(arguments);
    try {
      expected = copied(model.forward(mine.args, mine.kwargs));
    } catch (const std::exception& error) {
      throw CaptureError(fmt::format("the model fails on other values: {}", message_of(error)));
    }
  }
  {
    SavedState saved;
    save_what_changes(graph.parts(), saved);
    const Arguments mine = varied(arguments);
    got = copied(GraphProgram(graph).run(mine.args, mine.kwargs));
  }
  const auto pairs = tree::zip(expected, got, "output");
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    require<CaptureError>(
        tree::leaf_equal(pairs[i].first, pairs[i].second),
        "the graph does not give what the model gives, in {}: expected {}, got {} "
        "with other elements; does the model read or write tensors by pointer?",
        graph.parts().output.leaf_path(i, "output"), describe(pairs[i].first),
        describe(pairs[i].second));
  }
}

class Capture {
 public:
  Capture(const TracedModel& model, const Arguments& example, const CaptureOptions& options)
      : model_(model), inputs_(example, options.sizes) {}

  Graph run() {
    std::vector<int64_t> sizes;
    for (const GraphSize& size : inputs_.sizes()) sizes.push_back(size.example);
    // What a model computes once and keeps is there from the second run on.
    if (!sizes.empty()) trace_at(sizes);
    std::vector<GraphParts> corners;
    for (std::size_t k = 0; k < std::size_t{1} << sizes.size(); ++k) {
      std::vector<int64_t> corner = sizes;
      for (std::size_t i = 0; i < sizes.size(); ++i) corner[i] += static_cast<int64_t>(k >> i & 1);
      corners.push_back(trace_at(corner));
    }
    GraphParts parts = generalise(corners, inputs_.sizes());
    std::vector<int64_t> probe = sizes;
    for (std::size_t i = 0; i < sizes.size(); ++i) probe[i] = inputs_.probe(i);
    if (!sizes.empty()) check_generalised(parts, trace_at(probe), probe);
    for (std::size_t i = 0; i < sizes.size(); ++i) parts.sizes[i].least = least(parts, sizes, i);
    Graph graph(without_dead_code(parts));
    check_replay(model_, graph, inputs_.at(probe));
    return graph;
  }

 private:
  GraphParts trace_at(std::span<const int64_t> sizes) const {
    try {
      return trace(model_, inputs_.at(sizes));
    } catch (const CaptureError&) {
      throw;
    } catch (const std::exception& error) {
      std::string where;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        where += fmt::format("{}{} = {}", i > 0 ? ", " : " at ", inputs_.sizes()[i].name, sizes[i]);
      }
      throw CaptureError(fmt::format("the model fails{}: {}", where, message_of(error)));
    }
  }

  // The smallest size at which the model still does what the graph does.
  int64_t least(const GraphParts& parts, std::vector<int64_t> sizes, std::size_t size) const {
    const int64_t example = sizes[size];
    for (const int64_t n : {int64_t{1}, int64_t{2}}) {
      if (n >= example) break;
      sizes[size] = n;
      try {
        check_generalised(parts, trace_at(sizes), sizes);
        return n;
      } catch (const CaptureError&) {
        continue;
      }
    }
    return example;
  }

  const TracedModel& model_;
  Inputs inputs_;
};

}  // namespace

Graph capture(const TracedModel& model, const Arguments& example, const CaptureOptions& options) {
  return Capture(model, example, options).run();
}

}  // namespace stagecraft
