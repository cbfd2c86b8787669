#include "stagecraft/stage/grad_walk.h"

#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <torch/csrc/autograd/function.h>

namespace stagecraft {

namespace {

// Visits each node once, after all nodes that it leads to.
class Walker {
 public:
  explicit Walker(std::span<const GradEdge> inputs) {
    // Known from the start, so the walk does not go beyond the inputs, into the history of the
    // sender.
    for (const GradEdge& input : inputs) reaches_.emplace(input.function.get(), true);
  }

  bool visit(GradNode* root) {
    if (const auto found = reaches_.find(root); found != reaches_.end()) return found->second;
    push(root);
    // A stack of our own: a graph can be deeper than recursion allows (a loop over a long sequence
    // adds nodes for each step).
    while (!stack_.empty()) {
      Frame& top = stack_.back();
      if (top.next == top.node->num_outputs()) {
        finish(top);
        stack_.pop_back();
        continue;
      }
      GradNode* next = top.node->next_edge(top.next++).function.get();
      if (next == nullptr || reaches_.contains(next)) continue;
      push(next);
    }
    return reaches_.at(root);
  }

  GradWalk take() { return std::move(walk_); }

 private:
  struct Frame {
    GradNode* node;
    std::size_t next;
  };

  void push(GradNode* node) {
    // Present while its frame is open, so that it is not entered twice: the graph has no cycles.
    reaches_.emplace(node, false);
    stack_.push_back({node, 0});
  }

  void finish(const Frame& frame) {
    bool to_input = false;
    bool to_others = false;
    for (const GradEdge& edge : std::as_const(*frame.node).next_edges()) {
      if (!edge.is_valid()) continue;
      (reaches_.at(edge.function.get()) ? to_input : to_others) = true;
    }
    // A node that does not lead to inputs belongs to W alone.
    if (!to_input) return;
    reaches_[frame.node] = true;
    walk_.spine.push_back(frame.node);
    walk_.is_border.push_back(to_others);
  }

  std::unordered_map<GradNode*, bool> reaches_;
  std::vector<Frame> stack_;
  GradWalk walk_;
};

}  // namespace

GradWalk walk_graph(std::span<const GradEdge> roots, std::span<const GradEdge> inputs) {
  Walker walker(inputs);
  std::vector<bool> reaches;
  reaches.reserve(roots.size());
  for (const GradEdge& root : roots) reaches.push_back(walker.visit(root.function.get()));
  GradWalk walk = walker.take();
  walk.root_reaches_input = std::move(reaches);
  return walk;
}

void cut_spine(const GradWalk& walk, std::span<const GradEdge> inputs) {
  std::unordered_set<const GradNode*> cut(walk.spine.begin(), walk.spine.end());
  for (const GradEdge& input : inputs) cut.insert(input.function.get());
  // A node must not be destroyed while its edges are visited, so removed edges are released at the
  // end.
  std::vector<GradEdge> removed;
  for (GradNode* node : walk.spine) {
    for (GradEdge& edge : node->next_edges()) {
      if (edge.is_valid() && cut.contains(edge.function.get())) {
        removed.push_back(std::exchange(edge, GradEdge()));
      }
    }
  }
}

}  // namespace stagecraft
