#include "stagecraft/graph/capture/replay_check.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/error.h"
#include "stagecraft/graph/effects.h"
#include "stagecraft/graph/run/program.h"
#include "stagecraft/graph/run/saved_state.h"
#include "stagecraft/tree/describe.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {

namespace {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// What a run returns and changes.
struct Outcome {
  c10::IValue output;
  std::vector<NamedTensor> changed;
  /// A tensor is undefined if it has no gradient. Without a value, the backward failed.
  std::optional<std::vector<NamedTensor>> grads;
  std::string backward_problem;
};

/// Saves all buffers, other states that a run of the graph changes, and all generators that it may
/// draw from. Returns the buffers and states.
std::vector<NamedTensor> save_what_changes(const Graph& graph, SavedState& saved) {
  const GraphParts& parts = graph.parts();
  saved.save_default_generator(c10::kCPU);
  for (const GraphNode& node : parts.nodes) {
    for (const Argument& argument : node.arguments) {
      const c10::IValue* fixed = argument.fixed_value();
      if (fixed != nullptr && fixed->isGenerator()) saved.save(fixed->toGenerator());
    }
  }
  for (const GraphValue& value : parts.values) {
    if (!value.device.is_cpu()) saved.save_default_generator(value.device);
  }
  const std::vector<at::Tensor> written = changed_states(parts);
  std::vector<NamedTensor> changed;
  for (const GraphState& state : parts.states) {
    const auto is_state = [&](const at::Tensor& tensor) { return tensor.is_same(state.tensor); };
    if (state.kind == GraphState::Kind::kBuffer || std::ranges::any_of(written, is_state)) {
      saved.save(state.tensor);
      changed.push_back({graph.value(state.value).name, state.tensor});
    }
  }
  return changed;
}

at::Tensor copy_of(const at::Tensor& tensor) {
  return tensor.detach().clone(at::MemoryFormat::Preserve);
}

/// The arguments of one run: copies, and whether gradients are computed. Varied arguments have
/// different values in most positions, to detect elements of the example that the model has read by
/// pointer: rows have a different order, and floating-point numbers are scaled.
class Given {
 public:
  Given(const Arguments& arguments, bool is_varied, bool has_grads)
      : is_varied_(is_varied), has_grads_(has_grads) {
    auto copy = [&](const std::string& path, const c10::IValue& leaf) {
      return copied(path, leaf);
    };
    for (std::size_t i = 0; i < arguments.args.size(); ++i) {
      own_.args.push_back(tree::map_with_path(arguments.args[i], fmt::format("args[{}]", i), copy));
    }
    for (const auto& [name, value] : arguments.kwargs) {
      own_.kwargs.set(name, tree::map_with_path(value, fmt::format("kwargs[\"{}\"]", name), copy));
    }
  }

  const Arguments& arguments() const { return own_; }
  const std::vector<NamedTensor>& leaves() const { return leaves_; }

 private:
  c10::IValue copied(const std::string& path, const c10::IValue& leaf) {
    if (!leaf.isTensor() || !leaf.toTensor().defined()) return leaf;
    at::Tensor mine = leaf.toTensor().detach();
    const bool is_float = mine.is_floating_point() || mine.is_complex();
    // Only rows are reordered, because columns of integers may have different meanings.
    if (is_varied_ && mine.layout() == at::kStrided && mine.dim() > 0) mine = mine.flip(0);
    // 15/16 is exact in every floating-point type, and the values stay close to those of the
    // example.
    if (is_varied_ && is_float) mine = mine.mul(0.9375);
    if (!is_float || !has_grads_) return mine.clone(at::MemoryFormat::Preserve);
    leaves_.push_back({path, mine.clone(at::MemoryFormat::Preserve).requires_grad_()});
    return leaves_.back().tensor.clone();  // a copy, because a leaf must not be changed in place
  }

  bool is_varied_;
  bool has_grads_;
  Arguments own_;
  std::vector<NamedTensor> leaves_;
};

bool tensor_has_hooks(const at::Tensor& tensor) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  return meta != nullptr && !meta->hooks_.empty();
}

/// Weights for the outputs, chosen so that no symmetry cancels a difference.
at::Tensor output_grad(const at::Tensor& output) {
  return at::arange(output.numel(), output.options().dtype(at::kFloat))
      .cos()
      .to(output.scalar_type())
      .view(output.sizes());
}

class Replay {
 public:
  Replay(const StageBody& model, const Graph& graph, const Arguments& arguments,
         bool has_input_grads)
      : model_(model),
        graph_(graph),
        arguments_(arguments),
        has_input_grads_(has_input_grads),
        program_(graph) {
    for (const GraphState& state : graph.parts().states) {
      if (!state.tensor.requires_grad() || !state.tensor.is_leaf()) continue;
      parameters_.push_back({graph.value(state.value).name, state.tensor});
    }
    // A hook of the program would be called for gradients that mean nothing.
    with_grads_ = std::ranges::none_of(parameters_, [](const NamedTensor& parameter) {
      return tensor_has_hooks(parameter.tensor);
    });
  }

  void check() {
    const Outcome expected = run_model();
    const Outcome got =
        run([&](const Args& args, const Kwargs& kwargs) { return program_.run(args, kwargs); });
    check_outputs(expected, got);
    const std::string problem = find_other_grad(expected, got);
    if (problem.empty()) return;
    // Some backwards add in an order that differs from run to run. Then the model does not equal
    // itself, and the graph cannot be blamed.
    for (int again = 0; again < 2; ++again) {
      if (!find_other_grad(expected, run_model()).empty()) return;
    }
    throw CaptureError(problem);
  }

 private:
  using Forward = std::function<c10::IValue(const Args& args, const Kwargs& kwargs)>;

  // A model may fail on varied values, because it never gets such values. It then runs on the
  // original ones.
  Outcome run_model() {
    try {
      return run(model_.forward);
    } catch (const std::exception&) {
      if (!is_varied_) {
        throw CaptureError(fmt::format("the model fails when it runs again: {}",
                                       describe(std::current_exception())));
      }
    }
    is_varied_ = false;
    return run_model();
  }

  Outcome run(const Forward& forward) {
    SavedState saved;
    Outcome outcome;
    const std::vector<NamedTensor> changed = save_what_changes(graph_, saved);
    const Given given(arguments_, is_varied_, has_input_grads_);
    const c10::IValue output = forward(given.arguments().args, given.arguments().kwargs);
    std::vector<at::Tensor> roots;
    outcome.output = tree::map(output, [&](const c10::IValue& leaf) -> c10::IValue {
      if (!leaf.isTensor() || !leaf.toTensor().defined()) return leaf;
      if (leaf.toTensor().requires_grad()) roots.push_back(leaf.toTensor());
      // A copy, because an output may be a state or an input, which is restored before the
      // comparison.
      return copy_of(leaf.toTensor());
    });
    for (const NamedTensor& state : changed) {
      outcome.changed.push_back({state.name, copy_of(state.tensor)});
    }
    if (with_grads_) take_grads(given.leaves(), roots, outcome);
    return outcome;
  }

  void take_grads(std::vector<NamedTensor> leaves, const std::vector<at::Tensor>& roots,
                  Outcome& outcome) const {
    leaves.insert(leaves.end(), parameters_.begin(), parameters_.end());
    std::vector<at::Tensor> tensors;
    std::vector<at::Tensor> root_grads;
    for (const NamedTensor& leaf : leaves) tensors.push_back(leaf.tensor);
    for (const at::Tensor& root : roots) root_grads.push_back(output_grad(root));
    if (!roots.empty() && !tensors.empty()) {
      try {
        tensors = torch::autograd::grad(roots, tensors, root_grads, /*retain_graph=*/std::nullopt,
                                        /*create_graph=*/false, /*allow_unused=*/true);
      } catch (const std::exception&) {
        outcome.backward_problem = describe(std::current_exception());
        return;
      }
    } else {
      std::ranges::fill(tensors, at::Tensor());
    }
    outcome.grads.emplace();
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      outcome.grads->push_back({leaves[i].name, tensors[i]});
    }
  }

  void check_outputs(const Outcome& expected, const Outcome& got) const {
    const auto pairs = tree::zip(expected.output, got.output, "output");
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      require<CaptureError>(
          tree::leaf_equal(pairs[i].first, pairs[i].second),
          "the graph returns something different from the model, in {}: expected {}, got {} with "
          "different elements; does the model read or write tensors by pointer?",
          graph_.parts().output.leaf_path(i, "output"), describe(pairs[i].first),
          describe(pairs[i].second));
    }
    for (std::size_t i = 0; i < expected.changed.size(); ++i) {
      require<CaptureError>(tree::leaf_equal(expected.changed[i].tensor, got.changed[i].tensor),
                            "the graph leaves different elements in %{} than the model; does the "
                            "model write to it by pointer?",
                            expected.changed[i].name);
    }
  }

  /// The difference in gradients; empty if there is none, or if they cannot be compared.
  static std::string find_other_grad(const Outcome& expected, const Outcome& got) {
    if (!expected.grads) return {};
    if (!got.grads) {
      return fmt::format("the backward of the graph fails, that of the model does not: {}",
                         got.backward_problem);
    }
    for (std::size_t i = 0; i < expected.grads->size(); ++i) {
      const auto& [name, theirs] = (*expected.grads)[i];
      const at::Tensor& ours = (*got.grads)[i].tensor;
      if (theirs.defined() == ours.defined() &&
          (!ours.defined() || tree::leaf_equal(theirs, ours))) {
        continue;
      }
      return fmt::format(
          "the graph does not give the model's gradient of {}: expected {}, got {}; does the model "
          "change gradients outside its operators, or cast a weight in several autocast "
          "regions?",
          name, theirs.defined() ? describe(theirs) : "none",
          !ours.defined()    ? "none"
          : theirs.defined() ? "different elements"
                             : describe(ours));
    }
    return {};
  }

  const StageBody& model_;
  Graph graph_;
  const Arguments& arguments_;
  bool has_input_grads_;
  bool is_varied_ = true;
  GraphProgram program_;
  std::vector<NamedTensor> parameters_;
  bool with_grads_ = true;
};

}  // namespace

void check_replay(const StageBody& model, const Graph& graph, const Arguments& arguments,
                  bool has_input_grads) {
  const c10::AutoGradMode with_grad(true);
  // Both runs must draw from the default generators, which are restored. A RandomScope around the
  // capture would replace them, so its dispatch key is excluded.
  const c10::impl::ExcludeDispatchKeyGuard no_scope(c10::DispatchKey::DeferredInit);
  Replay(model, graph, arguments, has_input_grads).check();
}

}  // namespace stagecraft
