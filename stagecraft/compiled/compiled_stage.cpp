#include "stagecraft/compiled/compiled_stage.h"

#include <cstddef>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ops/randint.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/error.h"
#include "stagecraft/compiled/stage_programs.h"
#include "stagecraft/graph/run/input_binding.h"
#include "stagecraft/partition/pipe.h"
#include "stagecraft/stage/derived_seeds.h"
#include "stagecraft/stage/grad_edge.h"
#include "stagecraft/stage/stage_context.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {
namespace {

using detail::Flight;
using detail::StagePrograms;
using detail::Tensors;
using Kind = ProgramSlot::Kind;

/// The backwards of a stage's forwards, and their gradients of parameters.
class CompiledBackward final : public OwnBackward {
 public:
  CompiledBackward(StagePrograms programs, const CompiledOptions& options)
      : programs_(std::move(programs)),
        has_halves_(programs_.has(ProgramKind::kInputBackward)),
        options_(options) {}

  StagePrograms& programs() { return programs_; }

  void begin(bool with_weights) override {
    with_weights_ = with_weights;
    work_.clear();
  }

  std::function<void()> take_weight_work() override {
    if (work_.empty()) return {};
    return [work = std::exchange(work_, {})] {
      for (const std::function<void()>& each : work) each();
    };
  }

  void begin_step() override { programs_.forget_prepared(); }
  void release_kept() override { programs_.forget_prepared(); }

  /// Called by the autograd node. Returns the gradients of the inputs. `needs_inputs` says whether
  /// any of them is read.
  Tensors apply(Flight flight, Tensors output_grads, bool needs_inputs) {
    if (with_weights_ && has_halves_ && options_.same_bits) {
      Tensors grads = programs_.input_backward(flight, std::move(output_grads));
      programs_.weight_backward(flight);
      programs_.add_grads(flight);
      return grads;
    }
    if (with_weights_) {
      Tensors grads = programs_.backward(flight, std::move(output_grads));
      programs_.add_grads(flight);
      return grads;
    }
    auto rest = std::make_shared<Flight>(std::move(flight));
    if (has_halves_) {
      Tensors grads = programs_.input_backward(*rest, std::move(output_grads));
      work_.emplace_back([this, rest] {
        programs_.weight_backward(*rest);
        programs_.add_grads(*rest);
      });
      return grads;
    }
    if (needs_inputs) {
      Tensors grads = programs_.backward(*rest, std::move(output_grads));
      work_.emplace_back([this, rest] { programs_.add_grads(*rest); });
      return grads;
    }
    work_.emplace_back([this, rest, output_grads = std::move(output_grads)] {
      programs_.backward(*rest, output_grads);
      programs_.add_grads(*rest);
    });
    return Tensors(programs_.info().inputs.size());
  }

 private:
  StagePrograms programs_;
  bool has_halves_;
  CompiledOptions options_;
  bool with_weights_ = true;  // whether the current pass is a B; outside a Stage every pass is a B
  std::vector<std::function<void()>> work_;
};

/// The autograd node of one forward.
class CompiledNode final : public GradNode {
 public:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    require<Error>(flight.has_value(),
                   "a compiled stage's backward of a microbatch can run only once");
    Tensors output_grads(num_outputs);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      output_grads[outputs[i]] = grads[i].defined()
                                     ? std::move(grads[i])
                                     : input_metadata(static_cast<uint32_t>(i)).zeros_like();
    }
    grads.clear();
    Flight now = std::move(*flight);
    flight.reset();
    Tensors input_grads = owner->apply(std::move(now), std::move(output_grads), !inputs.empty());
    torch::autograd::variable_list result;
    for (const std::size_t input : inputs) result.push_back(std::move(input_grads[input]));
    return result;
  }
  void release_variables() override { flight.reset(); }
  std::string name() const override { return "CompiledStage"; }

  std::shared_ptr<CompiledBackward> owner;
  std::optional<Flight> flight;
  std::vector<std::size_t> inputs;   // by edge
  std::vector<std::size_t> outputs;  // by gradient
  std::size_t num_outputs = 0;
};

template <typename Ptr>
Ptr new_compiled_node() {
  if constexpr (std::is_same_v<Ptr, std::shared_ptr<GradNode>>) {
    return std::make_shared<CompiledNode>();
  } else {
    return c10::make_intrusive<CompiledNode>();
  }
}

/// The graph with the dtypes that the programs take: under autocast, values between stages may have
/// a different dtype than in the graph.
Graph with_dtypes(const Graph& graph, const CompiledStageInfo& info) {
  GraphParts parts = graph.parts();
  bool is_changed = false;
  std::size_t number = 0;
  for (const Argument& leaf : parts.inputs) {
    if (leaf.value() == nullptr) continue;
    const ProgramSlot* slot = detail::find_slot(info, Kind::kInput, number++);
    if (slot == nullptr) continue;
    GraphValue& value = parts.values[*leaf.value()];
    is_changed = is_changed || value.dtype != slot->dtype;
    value.dtype = slot->dtype;
  }
  return is_changed ? Graph(std::move(parts)) : graph;
}

/// FileError unless the description has the leaves of the graph.
Graph checked(const Graph& graph, const CompiledStageInfo& info, const std::string& path) {
  std::vector<std::string> inputs;
  for (const Argument& leaf : graph.parts().inputs) {
    if (leaf.value() != nullptr) inputs.push_back(graph.value(*leaf.value()).name);
  }
  std::vector<std::string> outputs;
  for (const Argument& leaf : graph.parts().outputs) {
    outputs.push_back(leaf.value() == nullptr ? "" : graph.value(*leaf.value()).name);
  }
  require<FileError>(inputs == info.inputs && outputs == info.outputs,
                     "{}: is damaged: the inputs and outputs of a stage are not those of its graph",
                     path);
  std::vector<bool> is_made(info.outputs.size(), false);
  for (const ProgramSlot& slot : info.find(ProgramKind::kForward)->outputs) {
    if (slot.kind == Kind::kOutput) is_made[slot.index] = true;
  }
  for (std::size_t o = 0; o < info.outputs.size(); ++o) {
    require<FileError>(info.outputs[o].empty() || is_made[o],
                       "{}: is damaged: no program makes output {} of a stage", path, o);
  }
  return graph;
}

class CompiledForward {
 public:
  CompiledForward(std::shared_ptr<CompiledBackward> backward, const Graph& graph,
                  const std::string& path)
      : backward_(std::move(backward)),
        graph_(checked(graph, info(), path)),
        binding_(with_dtypes(graph, info())),
        has_input_grad_(info().inputs.size(), false) {
    for (const std::string& name : info().draws) places_.push_back(random_place(name));
    for (const std::size_t input : info().input_grads) has_input_grad_[input] = true;
  }

  c10::IValue operator()(const Args& args, const Kwargs& kwargs) const {
    const std::vector<c10::IValue> leaves = binding_.leaves(args, kwargs);
    const std::vector<int64_t> sizes = binding_.sizes(leaves);
    Tensors inputs;
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      if (graph_.parts().inputs[i].value() != nullptr) inputs.push_back(leaves[i].toTensor());
    }
    const StageContext* context = current_stage();
    StagePrograms& programs = backward_->programs();
    const bool records = c10::GradMode::is_enabled() && programs.has(ProgramKind::kBackward);
    // The first forward of a recomputed stage must not run `eval`: its results must have the same
    // bits as those of the second.
    const bool is_eval = !records && (context == nullptr || !context->is_training);
    at::Tensor seeds = make_seeds(context, programs.device());
    if (!records) {
      return output_of(
          programs.forward({plain(std::move(inputs)), sizes, std::move(seeds)}, nullptr, is_eval),
          sizes);
    }
    GradNodePtr pointer = new_compiled_node<GradNodePtr>();
    auto& node = static_cast<CompiledNode&>(*pointer);
    node.owner = backward_;
    torch::autograd::edge_list edges;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].requires_grad()) continue;
      require<ArgumentError>(has_input_grad_[i],
                             "input '{}' requires a gradient, but the stage was compiled without "
                             "one for it",
                             info().inputs[i]);
      node.inputs.push_back(i);
      edges.push_back(grad_edge_of(inputs[i]));
    }
    node.set_next_edges(std::move(edges));
    Flight flight;
    Tensors outputs =
        programs.forward({plain(std::move(inputs)), sizes, std::move(seeds)}, &flight);
    node.flight = std::move(flight);
    node.num_outputs = outputs.size();
    for (const std::size_t o : info().output_grads) {
      const auto number = static_cast<uint32_t>(node.add_input_metadata(outputs[o]));
      torch::autograd::impl::set_gradient_edge(outputs[o], GradEdge(pointer, number));
      node.outputs.push_back(o);
    }
    return output_of(std::move(outputs), sizes);
  }

 private:
  const CompiledStageInfo& info() const { return backward_->programs().info(); }

  /// Detaches the inputs: programs record no history, and saved inputs must not keep the autograd
  /// graph alive.
  static Tensors plain(Tensors inputs) {
    for (at::Tensor& input : inputs) {
      if (input.requires_grad()) input = input.detach();
    }
    return inputs;
  }

  at::Tensor make_seeds(const StageContext* context, c10::Device device) const {
    if (places_.empty()) return {};
    if (context != nullptr && context->draw) {
      return derived_seeds(*context->draw, places_, device);
    }
    const at::Tensor base = at::randint(std::numeric_limits<int64_t>::max(), {1}, at::kLong);
    return derived_seeds(static_cast<uint64_t>(base.item<int64_t>()), places_, device);
  }

  c10::IValue output_of(Tensors outputs, const std::vector<int64_t>& sizes) const {
    const GraphParts& parts = graph_.parts();
    std::vector<c10::IValue> leaves;
    for (std::size_t o = 0; o < parts.outputs.size(); ++o) {
      const Argument& output = parts.outputs[o];
      if (output.value() != nullptr) {
        leaves.emplace_back(std::move(outputs[o]));
      } else if (const SizeExpr* size = output.size()) {
        leaves.emplace_back(size->at(sizes));
      } else {
        leaves.push_back(*output.fixed_value());
      }
    }
    if (parts.output.is_leaf()) return std::move(leaves.front());
    return tree::unflatten(parts.output, std::move(leaves));
  }

  std::shared_ptr<CompiledBackward> backward_;
  Graph graph_;
  InputBinding binding_;
  std::vector<bool> has_input_grad_;  // by input
  std::vector<uint64_t> places_;      // by seed
};

}  // namespace

StageBody compiled_body(std::shared_ptr<const CompiledPackage> package, StageId stage,
                        const Graph& graph, c10::Device device, const CompiledOptions& options) {
  const std::string path = package->path();
  auto backward = std::make_shared<CompiledBackward>(
      StagePrograms(std::move(package), stage, graph, device), options);
  StageBody body;
  for (const GraphState& state : graph.parts().states) {
    if (state.kind == GraphState::Kind::kParameter) {
      body.parameters.emplace_back(graph.value(state.value).name, state.tensor);
    } else if (state.kind == GraphState::Kind::kBuffer) {
      body.buffers.emplace_back(graph.value(state.value).name, state.tensor);
    }
  }
  body.own_backward = backward;
  body.forward = [forward =
                      std::make_shared<const CompiledForward>(std::move(backward), graph, path)](
                     const Args& args, const Kwargs& kwargs) { return (*forward)(args, kwargs); };
  return body;
}

}  // namespace stagecraft
