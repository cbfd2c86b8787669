#include "stagecraft/partition/stage_drafts.h"

#include <algorithm>

namespace stagecraft {

StageDrafts::StageDrafts(const Graph& graph, const SplitPositions& positions,
                         const Sharing& sharing)
    : graph_(graph), uses_(graph), drafts_(positions.size() + 1) {
  for (std::size_t n = 0; n < graph.parts().nodes.size(); ++n) {
    stage_of_.push_back(
        static_cast<int32_t>(std::ranges::upper_bound(positions, n) - positions.begin()));
  }
  find_inputs();
  states_ = plan_states(graph, uses_, stage_of_, last() + 1, sharing);
  collect_needs();
  for (int32_t k = last(); k >= 0; --k) resolve(k);
}

void StageDrafts::find_inputs() {
  const GraphParts& parts = graph_.parts();
  auto add = [&](const TreeSpec& spec, const ModelInput& input) {
    for (std::size_t i = 0; i < spec.num_leaves(); ++i) {
      if (const ValueId* value = parts.inputs[leaf_of_.size()].value()) {
        input_of_[*value] = leaf_of_.size();
      }
      leaf_of_.push_back(input);
    }
  };
  const auto args = parts.args.children();
  for (std::size_t i = 0; i < args.size(); ++i) add(args[i], {static_cast<int32_t>(i), ""});
  const auto kwargs = parts.kwargs.children();
  for (std::size_t i = 0; i < kwargs.size(); ++i) {
    add(kwargs[i], {std::nullopt, parts.kwargs.key(i)});
  }
  // Stage 0 gets the fixed inputs, so that it can check them against the capture.
  for (std::size_t i = 0; i < parts.inputs.size(); ++i) {
    if (parts.inputs[i].fixed_value() != nullptr) feed(0, i);
  }
}

void StageDrafts::collect_needs() {
  const GraphParts& parts = graph_.parts();
  for (std::size_t n = 0; n < parts.nodes.size(); ++n) {
    for (const Argument& argument : parts.nodes[n].arguments) {
      for_each_value(argument, [&](ValueId value) { need(stage_of_[n], value); });
    }
  }
  for (const Argument& output : parts.outputs) {
    for_each_value(output, [&](ValueId value) { need(last(), value); });
  }
}

void StageDrafts::need(int32_t stage, ValueId value) {
  const ValueUses::Span span = uses_.of(value);
  if (span.is_state && states_.is_held(value, stage)) return;
  if (span.is_made_here() && stage_of(span.made) == stage) return;
  at(stage).needs.insert(value);
}

// The stage that sends the value to `stage`: the stage before `stage` that changed its memory last,
// otherwise the stage that makes it. -1: the value is an input of the model.
int32_t StageDrafts::source(ValueId value, int32_t stage) const {
  const ValueUses::Span span = uses_.of(value);
  if (span.is_state) return states_.owner(value);
  int32_t result = span.is_made_here() ? stage_of(span.made) : -1;
  for (const int32_t node : uses_.memory_of(value).writes) {
    if (node > span.made && stage_of(node) < stage) result = std::max(result, stage_of(node));
  }
  return result;
}

void StageDrafts::resolve(int32_t stage) {
  StageDraft& draft = at(stage);
  for (const ValueId value : draft.needs) {
    const int32_t from = source(value, stage);
    if (from < 0) {
      feed(stage, input_of_.at(value));
      continue;
    }
    draft.from[value] = from;
    at(from).outputs.insert(value);
    need(from, value);
  }
}

void StageDrafts::send_size(int size, int32_t from, int32_t to) {
  at(from).size_outputs.insert(size);
  at(to).sizes_from[size] = from;
}

void StageDrafts::feed(int32_t stage, std::size_t leaf) {
  const ModelInput& input = leaf_of_[leaf];
  if (input.argument) {
    at(stage).arguments.insert(*input.argument);
  } else {
    at(stage).keywords.insert(input.keyword);
  }
}

}  // namespace stagecraft
