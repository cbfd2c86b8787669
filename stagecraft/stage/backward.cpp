#include "stagecraft/stage/backward.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_set>
#include <utility>

#include <ATen/ops/add.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "stagecraft/base/check.h"
#include "stagecraft/stage/grad_walk.h"
#include "stagecraft/tree/tensor_meta.h"

namespace stagecraft {

namespace {

using torch::autograd::edge_list;
using torch::autograd::variable_list;

struct Roots {
  edge_list edges;
  variable_list grads;

  void add(GradEdge edge, at::Tensor grad) {
    edges.push_back(std::move(edge));
    grads.push_back(std::move(grad));
  }
};

void check(const GradRoot& root) {
  const auto& meta = root.edge.function->input_metadata(root.edge.input_nr);
  // The autograd engine does not refuse every other shape: it sums a gradient whose shape can be
  // reduced to that of the output.
  if (meta.is_same_shape(root.grad)) return;
  throw MetadataError(fmt::format(
      "the gradient of an output has a different shape: expected [{}], got {}",
      fmt::join(C10_AS_INTARRAYREF_SLOW(meta.shape_as_dim_vector()), ", "), describe(root.grad)));
}

// Outputs with a graph and a gradient.
void drop_absent(std::vector<GradRoot>& roots) {
  std::erase_if(roots,
                [](const GradRoot& root) { return !root.edge.is_valid() || !root.grad.defined(); });
  for (const GradRoot& root : roots) check(root);
}

variable_list execute(const Roots& roots, bool keep_graph, bool accumulate,
                      const edge_list& captures = {}) {
  return torch::autograd::Engine::get_default_engine().execute(
      roots.edges, roots.grads, keep_graph, /*create_graph=*/false, accumulate, captures);
}

Roots to_roots(std::vector<GradRoot> roots) {
  Roots result;
  for (GradRoot& root : roots) result.add(std::move(root.edge), std::move(root.grad));
  return result;
}

std::vector<GradEdge> edges_of(std::span<const StageInput> inputs) {
  std::vector<GradEdge> edges;
  edges.reserve(inputs.size());
  for (const StageInput& input : inputs) edges.push_back(input.edge());
  return edges;
}

std::vector<GradEdge> edges_of(const std::vector<GradRoot>& roots) {
  std::vector<GradEdge> edges;
  edges.reserve(roots.size());
  for (const GradRoot& root : roots) edges.push_back(root.edge);
  return edges;
}

// Releases the saved tensors of a node as soon as it has run. The autograd engine would keep them
// for W.
class ReleaseHook : public torch::autograd::FunctionPostHook {
 public:
  explicit ReleaseHook(GradNode* node) : node_(node) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    node_->release_variables();
    return outputs;
  }

 private:
  GradNode* node_;
};

// Notes the gradients that arrive at a border node, from which W starts. The hook runs after the
// user's hooks on the tensors of the node. A capture by the autograd engine would come before
// those.
class BorderHook : public torch::autograd::FunctionPreHook {
 public:
  explicit BorderHook(std::shared_ptr<variable_list> arrived) : arrived_(std::move(arrived)) {}
  variable_list operator()(const variable_list& grads) override {
    *arrived_ = grads;
    return grads;
  }

 private:
  std::shared_ptr<variable_list> arrived_;
};

// A node of the spine with edges that leave it. The node is kept alive, because the spine will be
// cut.
struct Border {
  GradNodePtr node;
  std::shared_ptr<variable_list> arrived = std::make_shared<variable_list>();
};

std::vector<Border> watch_borders(const GradWalk& walk) {
  std::vector<Border> borders;
  for (std::size_t i = 0; i < walk.spine.size(); ++i) {
    if (!walk.is_border[i]) continue;
    Border& border = borders.emplace_back();
    border.node = walk.spine[i]->getptr();
    border.node->add_tensor_pre_hook(std::make_unique<BorderHook>(border.arrived));
  }
  return borders;
}

// The user's hooks have run in I, on the gradients that W starts from.
void drop_tensor_hooks(GradNode& node) {
  // Also removes BorderHook, which W would run again.
  node.tensor_pre_hooks().clear();
  node.retains_grad_hooks().clear();
}

void add_roots(const GradNodePtr& node, std::vector<at::Tensor>& grads,
               std::vector<GradRoot>& roots) {
  for (std::size_t n = 0; n < grads.size(); ++n) {
    // An output of the node that has received no gradient, for example an unused result of chunk.
    if (!grads[n].defined()) continue;
    roots.push_back({GradEdge(node, static_cast<uint32_t>(n)), std::move(grads[n])});
  }
}

// The leaves that can be reached from a node.
std::vector<at::Tensor> leaves_below(GradNode* node) {
  std::vector<at::Tensor> leaves;
  std::unordered_set<GradNode*> seen = {node};
  std::vector<GradNode*> left = {node};
  while (!left.empty()) {
    GradNode* const next = left.back();
    left.pop_back();
    if (const auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(next)) {
      leaves.push_back(leaf->variable);
    }
    for (const GradEdge& edge : next->next_edges()) {
      if (edge.is_valid() && seen.insert(edge.function.get()).second) {
        left.push_back(edge.function.get());
      }
    }
  }
  return leaves;
}

// Adds a root to the entry of its node. Roots of one node may belong to different outputs.
void add_border(std::vector<BorderWork>& borders, GradRoot root) {
  auto found = std::find_if(borders.begin(), borders.end(), [&](const BorderWork& border) {
    return border.node == root.edge.function;
  });
  if (found == borders.end()) {
    borders.push_back({root.edge.function, {}, {}});
    found = borders.end() - 1;
    found->grads.resize(root.edge.function->num_inputs());
  }
  at::Tensor& grad = found->grads[root.edge.input_nr];
  // Two roots of one edge, for example an output that is returned twice. Not in place: the first
  // gradient belongs to the caller.
  grad = grad.defined() ? at::add(grad, root.grad) : std::move(root.grad);
}

void release_inner_nodes_as_they_finish(const GradWalk& walk) {
  for (std::size_t i = 0; i < walk.spine.size(); ++i) {
    if (walk.is_border[i]) continue;
    walk.spine[i]->add_post_hook(std::make_unique<ReleaseHook>(walk.spine[i]));
  }
}

// The results of I, before they are handed out.
struct SplitBackward {
  std::vector<at::Tensor> input_grads;  // empty if no root leads to an input
  std::vector<Border> borders;
  std::vector<GradRoot> others;  // those that lead to no input
};

SplitBackward run_split(std::vector<GradRoot> roots, std::span<const GradEdge> inputs) {
  drop_absent(roots);
  // An input without history has no edge; the autograd engine captures nothing there.
  std::vector<GradEdge> edges;
  for (const GradEdge& edge : inputs) {
    if (edge.is_valid()) edges.push_back(edge);
  }
  const GradWalk walk = walk_graph(edges_of(roots), edges);
  SplitBackward split;
  Roots spine_roots;
  for (std::size_t i = 0; i < roots.size(); ++i) {
    if (walk.root_reaches_input[i]) {
      spine_roots.add(std::move(roots[i].edge), std::move(roots[i].grad));
    } else {
      // I runs only nodes that lead to inputs. W starts at these roots.
      split.others.push_back(std::move(roots[i]));
    }
  }
  // No root leads to an input, so W is the whole backward.
  if (spine_roots.edges.empty()) return split;

  split.borders = watch_borders(walk);
  release_inner_nodes_as_they_finish(walk);
  // The graph is kept for the tensors that W reads at border nodes; ReleaseHook frees those of the
  // other nodes. Without accumulation, because W computes the gradients of the parameters.
  variable_list grads = execute(spine_roots, /*keep_graph=*/true, /*accumulate=*/false,
                                edge_list(edges.begin(), edges.end()));
  // After I: W starts at border nodes, and would otherwise run the spine below them a second time
  // and count its weights twice.
  cut_spine(walk, edges);
  for (Border& border : split.borders) drop_tensor_hooks(*border.node);
  std::size_t n = 0;
  for (const GradEdge& edge : inputs) {
    split.input_grads.push_back(edge.is_valid() ? std::move(grads[n++]) : at::Tensor());
  }
  return split;
}

}  // namespace

void backward_full(std::vector<GradRoot> roots, bool keep_graph) {
  drop_absent(roots);
  if (roots.empty()) return;
  execute(to_roots(std::move(roots)), keep_graph, /*accumulate=*/true);
}

WeightWork backward_input(std::vector<GradRoot> roots, std::span<const StageInput> inputs) {
  const std::vector<GradEdge> edges = edges_of(inputs);
  SplitBackward split = run_split(std::move(roots), edges);
  WeightWork work{std::move(split.others)};
  for (Border& border : split.borders) add_roots(border.node, *border.arrived, work.roots);
  if (split.input_grads.empty()) return work;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    inputs[i].keep_grad(std::move(split.input_grads[i]));
  }
  return work;
}

InputBackward backward_input(std::vector<GradRoot> roots, std::span<const GradEdge> inputs) {
  SplitBackward split = run_split(std::move(roots), inputs);
  InputBackward result{std::move(split.input_grads), {}};
  result.input_grads.resize(inputs.size());
  for (Border& border : split.borders) {
    if (border.arrived->empty()) continue;
    result.borders.push_back({border.node, std::move(*border.arrived), {}});
  }
  for (GradRoot& root : split.others) add_border(result.borders, std::move(root));
  // After the cut, so that only leaves are found that W of this border reaches.
  for (BorderWork& border : result.borders) border.parameters = leaves_below(border.node.get());
  return result;
}

void backward_weight(std::span<const BorderWork> borders, bool keep_graph) {
  std::vector<GradRoot> roots;
  for (const BorderWork& border : borders) {
    // A copy of the references: with keep_graph the borders are used again.
    std::vector<at::Tensor> grads = border.grads;
    add_roots(border.node, grads, roots);
  }
  drop_absent(roots);
  if (!roots.empty()) execute(to_roots(std::move(roots)), keep_graph, /*accumulate=*/true);
}

void backward_weight(WeightWork work) {
  backward_full(std::move(work.roots));
}

void backward_into(const std::vector<std::pair<at::Tensor, at::Tensor>>& grads) {
  std::vector<GradRoot> roots;
  for (const auto& [tensor, grad] : grads) roots.push_back({grad_edge_of(tensor), grad});
  backward_full(std::move(roots));
}

}  // namespace stagecraft
