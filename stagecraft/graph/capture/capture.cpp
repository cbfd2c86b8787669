#include "stagecraft/graph/capture/capture.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/error.h"
#include "stagecraft/graph/capture/element_shapes.h"
#include "stagecraft/graph/capture/example_inputs.h"
#include "stagecraft/graph/capture/generalise.h"
#include "stagecraft/graph/capture/replay_check.h"
#include "stagecraft/graph/op_types.h"
#include "stagecraft/graph/passes/dead_code.h"
#include "stagecraft/graph/passes/run_pass.h"
#include "stagecraft/graph/run/saved_state.h"

namespace stagecraft {

namespace {

using Sizes = std::vector<int64_t>;

class Capture {
 public:
  Capture(const StageBody& model, const Arguments& example, const CaptureOptions& options)
      : model_(model), inputs_(example, options.sizes) {
    options_.equal_by_identity = options.equal_by_identity;
  }

  Graph run() {
    // Destroyed last, so buffers are restored even if the capture fails. Restores buffers that the
    // model writes by pointer, too.
    SavedState saved;
    for (const auto& [name, buffer] : model_.buffers) {
      if (buffer.defined()) saved.save(buffer);
    }
    Sizes sizes;
    for (const GraphSize& size : inputs_.sizes()) sizes.push_back(size.example);
    first_trace(sizes);
    std::vector<GraphParts> corners;
    for (std::size_t k = 0; k < std::size_t{1} << sizes.size(); ++k) {
      Sizes corner = sizes;
      for (std::size_t i = 0; i < sizes.size(); ++i) corner[i] += static_cast<int64_t>(k >> i & 1);
      corners.push_back(trace_at(corner));
    }
    // Before `generalise`, which would fit an expression to a dimension that depends on elements.
    find_open_dims(corners.front(), sizes);
    GraphParts parts = generalise(corners, inputs_.sizes());
    Sizes probe = sizes;
    for (std::size_t i = 0; i < sizes.size(); ++i) probe[i] = inputs_.probe(i);
    for (const Sizes& far : far_sizes(sizes, probe)) {
      check_generalised(parts, trace_at(far), far);
    }
    // After the far sizes: it asks where this graph is right, so the graph must be final.
    find_least(parts, sizes);
    // After all comparisons: traces are compared node by node, with their dead code.
    Graph graph = run_pass(std::move(parts), without_dead_code);
    check_replay(model_, graph, inputs_.at(probe), options_.has_input_grads);
    return graph;
  }

 private:
  // The trace of the first run is dropped, because a model may compute values in its first call and
  // keep them. If the run fails, it is repeated with arguments that do not require gradients,
  // because some operators refuse those that do.
  void first_trace(const Sizes& sizes) {
    try {
      trace(model_, inputs_.at(sizes), options_);
    } catch (const CaptureError&) {
      throw;
    } catch (const std::exception&) {
      options_.has_input_grads = false;
      trace_at(sizes);
    }
  }

  GraphParts trace_at(std::span<const int64_t> sizes) const {
    try {
      return trace(model_, inputs_.at(sizes), options_);
    } catch (const CaptureError&) {
      throw;
    } catch (const std::exception&) {
      std::string where;
      bool is_example = true;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        where += fmt::format("{}{} = {}", i > 0 ? ", " : " at ", inputs_.sizes()[i].name, sizes[i]);
        is_example = is_example && sizes[i] == inputs_.sizes()[i].example;
      }
      throw CaptureError(fmt::format(
          "the model fails{}: {}{}", where, describe(std::current_exception()),
          is_example ? ""
                     : "; capture runs it at the sizes of the example, one above, and at "
                       "SizeSpec::probe"));
    }
  }

  // All sizes at their probe, each size alone at its probe, and all sizes equal, because models
  // compare sizes with each other.
  static std::vector<Sizes> far_sizes(const Sizes& sizes, const Sizes& probe) {
    std::vector<Sizes> result;
    if (sizes.empty()) return result;
    result.push_back(probe);
    if (sizes.size() == 1) return result;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      Sizes alone = sizes;
      alone[i] = probe[i];
      result.push_back(std::move(alone));
    }
    const int64_t common = std::ranges::max(sizes);
    if (common <= std::ranges::min(probe)) result.push_back(Sizes(sizes.size(), common));
    return result;
  }

  bool holds_at(const GraphParts& parts, std::span<const int64_t> sizes) const {
    try {
      check_generalised(parts, trace_at(sizes), sizes);
      return true;
    } catch (const CaptureError&) {
      return false;
    }
  }

  // Finds the smallest sizes at which the model still calls the operators of the graph: each size
  // alone by bisection, then all together.
  void find_least(GraphParts& parts, const Sizes& sizes) const {
    Sizes all_least = sizes;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      Sizes less = sizes;
      auto holds = [&](int64_t n) {
        less[i] = n;
        return holds_at(parts, less);
      };
      if (sizes[i] == 1) continue;
      // Most models take a batch of 1, so this one run replaces the search.
      if (holds(1)) {
        all_least[i] = 1;
        continue;
      }
      // A bisection: it assumes that a model that is right at a size is right above it. Each step
      // is a run of the model.
      int64_t wrong = 1;
      while (all_least[i] - wrong > 1) {
        const int64_t middle = wrong + (all_least[i] - wrong) / 2;
        (holds(middle) ? all_least[i] : wrong) = middle;
      }
    }
    // Each size was tried alone. If the graph is wrong where all are least, the sizes of the
    // example are the bound.
    if (sizes.size() > 1 && all_least != sizes && !holds_at(parts, all_least)) all_least = sizes;
    for (std::size_t i = 0; i < sizes.size(); ++i) parts.sizes[i].least = all_least[i];
  }

  // A shape that depends on elements can look like one that depends on sizes, if every row has the
  // same number of chosen elements.
  void find_open_dims(GraphParts& trace, std::span<const int64_t> sizes) const {
    const bool depends = std::ranges::any_of(trace.nodes, [](const GraphNode& node) {
      return shape_deciding_argument(*find_schema(node.op)).has_value();
    });
    if (!depends) return;
    std::size_t farthest = 0;
    std::string failure;
    bool is_whole = false;
    // A model may fail on some of the three, for example in a reduction over no element. One run
    // that reaches the end is enough.
    for (const ElementChange change :
         {ElementChange::kOne, ElementChange::kNone, ElementChange::kAll}) {
      const OtherElements other =
          trace_with_other_elements(model_, inputs_.at(sizes), change, options_);
      open_dims(trace, other.parts);
      is_whole = is_whole || other.failure.empty();
      if (other.failure.empty() || other.parts.nodes.size() <= farthest) continue;
      farthest = other.parts.nodes.size();
      failure = other.failure;
    }
    if (is_whole) return;
    const GraphNode& last = trace.nodes[std::min(farthest, trace.nodes.size()) - 1];
    throw CaptureError(fmt::format(
        "{} ({}): the model fails there if fewer or more elements are chosen, as by nonzero() or a "
        "mask, so capture cannot check whether the model reads their number: {}",
        last.name, toString(last.op), failure));
  }

  const StageBody& model_;
  ExampleInputs inputs_;
  TraceOptions options_;
};

}  // namespace

Graph capture(const StageBody& model, const Arguments& example, const CaptureOptions& options) {
  return Capture(model, example, options).run();
}

}  // namespace stagecraft
