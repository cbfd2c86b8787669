#include "stagecraft/partition/stage_plan.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <iterator>
#include <utility>

#include "stagecraft/graph/passes/run_pass.h"
#include "stagecraft/graph/size_analysis.h"
#include "stagecraft/partition/stage_drafts.h"

namespace stagecraft {

namespace {

/// Sizes that the inputs of a stage determine, and sizes that it measures.
SizeSet available_sizes(const GraphParts& parts) {
  SizeSet known = known_sizes(parts);
  for (std::size_t i = 0; i < parts.sizes.size(); ++i) {
    if (parts.sizes[i].measured) known |= SizeSet{1} << i;
  }
  return with_rules(parts, known);
}

/// Whether an input determines the only size of a set: the input is that size, or a dimension of
/// its shape depends on that size alone.
bool tells(const Graph& graph, const Argument& input, SizeSet size) {
  if (input.size() != nullptr) return input.size()->sizes() == size;
  if (input.value() == nullptr) return false;
  return std::ranges::any_of(graph.value(*input.value()).shape,
                             [&](const SizeExpr& dim) { return dim.sizes() == size; });
}

// A stage gets the sizes that it needs and that its tensors do not determine from an earlier stage
// that knows them, otherwise from an argument of the model.
void send_sizes(StageDrafts& drafts, int32_t k) {
  const GraphParts parts = draft_graph(drafts, k);
  const SizeSet available = available_sizes(parts);
  SizeSet open = read_sizes(parts) & ~available;
  for (std::size_t i = parts.sizes.size(); i-- > 0;) {
    const auto& rule = parts.sizes[i].rule;
    if (!rule || (open >> i & 1) == 0) continue;
    open = (open & ~(SizeSet{1} << i)) | (rule->sizes() & ~available);
  }
  for (; open != 0; open &= open - 1) {
    const int size = std::countr_zero(open);
    int32_t from = 0;
    while (from < k && (available_sizes(draft_graph(drafts, from)) >> size & 1) == 0) ++from;
    if (from < k) {
      drafts.send_size(size, from, k);
      continue;
    }
    const std::vector<Argument>& inputs = drafts.graph().parts().inputs;
    const auto found = std::ranges::find_if(inputs, [&](const Argument& input) {
      return tells(drafts.graph(), input, SizeSet{1} << size);
    });
    if (found != inputs.end()) drafts.feed(k, static_cast<std::size_t>(found - inputs.begin()));
  }
}

template <typename Set, typename Key>
int32_t place_in(const Set& set, const Key& key) {
  return static_cast<int32_t>(std::distance(set.begin(), set.find(key)));
}

StagePlan build_plan(const StageDrafts& drafts, int32_t k) {
  const StageDraft& draft = drafts[k];
  GraphParts parts = draft_graph(drafts, k);
  const SizeSet known = known_sizes(parts);
  std::ranges::copy_if(
      drafts.graph().parts().guards, std::back_inserter(parts.guards),
      [&](const GraphGuard& guard) { return (guard.holds.sizes() & ~known) == 0; });
  StagePlan plan{.graph = Graph(compact(std::move(parts))), .sources = {}};
  for (const int32_t argument : draft.arguments) plan.sources.emplace_back(FromArgument{argument});
  for (const auto& [value, from] : draft.from) {
    plan.sources.emplace_back(OutputPort{StageId(from), place_in(drafts[from].outputs, value)});
  }
  for (const auto& [size, from] : draft.sizes_from) {
    const auto values = static_cast<int32_t>(drafts[from].outputs.size());
    plan.sources.emplace_back(
        OutputPort{StageId(from), values + place_in(drafts[from].size_outputs, size)});
  }
  return plan;
}

}  // namespace

Ports ports_of(const std::vector<StagePlan>& stages) {
  Ports ports = Ports::without_chain(static_cast<int32_t>(stages.size()));
  for (std::size_t k = 0; k < stages.size(); ++k) {
    const StageId stage(static_cast<int32_t>(k));
    for (std::size_t i = 0; i < stages[k].sources.size(); ++i) {
      const InputPort to{stage, static_cast<int32_t>(i)};
      if (const auto* argument = std::get_if<FromArgument>(&stages[k].sources[i])) {
        ports.feed(argument->argument, to);
      } else {
        ports.connect(std::get<OutputPort>(stages[k].sources[i]), to);
      }
    }
    const TreeSpec& keywords = stages[k].graph.parts().kwargs;
    for (std::size_t i = 0; i < keywords.children().size(); ++i) {
      ports.feed(keywords.key(i), {stage, 0, keywords.key(i)});
    }
  }
  return ports;
}

PipePlan plan_stages(const Graph& graph, const SplitPositions& positions, const Sharing& sharing) {
  StageDrafts drafts(graph, positions, sharing);
  for (int32_t k = 0; k <= drafts.last(); ++k) send_sizes(drafts, k);
  PipePlan plan{.stages = {}, .ties = drafts.states().ties};
  for (int32_t k = 0; k <= drafts.last(); ++k) plan.stages.push_back(build_plan(drafts, k));
  return plan;
}

}  // namespace stagecraft
