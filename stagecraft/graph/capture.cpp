#include "stagecraft/graph/capture.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/remainder.h>
#include <c10/core/GradMode.h>

#include "stagecraft/base/check.h"
#include "stagecraft/graph/effects.h"
#include "stagecraft/graph/element_shapes.h"
#include "stagecraft/graph/generalise.h"
#include "stagecraft/graph/op_types.h"
#include "stagecraft/graph/replay_check.h"
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
    const int64_t probe = spec.probe.value_or(4 * example + 3);
    require<ArgumentError>(probe > 0 && probe != example && probe != example + 1,
                           "size {}: expected a probe other than {} and {}, got {}", spec.name,
                           example, example + 1, probe);
    sizes_.push_back({.name = spec.name,
                      .example = example,
                      .least = 1,
                      .greatest = std::max(example + 1, probe)});
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
    find_open_dims(corners.front(), sizes);
    GraphParts parts = generalise(corners, inputs_.sizes());
    std::vector<int64_t> probe = sizes;
    for (std::size_t i = 0; i < sizes.size(); ++i) probe[i] = inputs_.probe(i);
    if (!sizes.empty()) check_generalised(parts, trace_at(probe), probe);
    find_least(parts, sizes);
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

  bool holds_at(const GraphParts& parts, std::span<const int64_t> sizes) const {
    try {
      check_generalised(parts, trace_at(sizes), sizes);
      return true;
    } catch (const CaptureError&) {
      return false;
    }
  }

  // The smallest sizes at which the model still does what the graph does.
  void find_least(GraphParts& parts, const std::vector<int64_t>& sizes) const {
    std::vector<int64_t> all_least = sizes;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      std::vector<int64_t> one_less = sizes;
      for (const int64_t n : {int64_t{1}, int64_t{2}}) {
        one_less[i] = n;
        if (n >= sizes[i] || !holds_at(parts, one_less)) continue;
        all_least[i] = n;
        break;
      }
    }
    if (sizes.size() > 1 && all_least != sizes && !holds_at(parts, all_least)) all_least = sizes;
    for (std::size_t i = 0; i < sizes.size(); ++i) parts.sizes[i].least = all_least[i];
  }

  // Where elements decide a shape, it may seem to follow the sizes: when every row has the same
  // number of them.
  void find_open_dims(GraphParts& trace, std::span<const int64_t> sizes) const {
    const bool depends = std::ranges::any_of(trace.nodes, [](const GraphNode& node) {
      return shape_deciding_argument(*find_schema(node.op)).has_value();
    });
    if (depends) open_dims(trace, trace_with_other_elements(model_, inputs_.at(sizes)));
  }

  const TracedModel& model_;
  Inputs inputs_;
};

}  // namespace

Graph capture(const TracedModel& model, const Arguments& example, const CaptureOptions& options) {
  return Capture(model, example, options).run();
}

}  // namespace stagecraft
