#include "stagecraft/partition/stage_plan.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "stagecraft/base/check.h"
#include "stagecraft/graph/capture/scope.h"
#include "stagecraft/graph/passes/run_pass.h"
#include "stagecraft/graph/size_analysis.h"
#include "stagecraft/partition/state_plan.h"
#include "stagecraft/partition/uses.h"

namespace stagecraft {

namespace {

std::size_t to_size(int32_t index) {
  return static_cast<std::size_t>(index);
}

class Planner {
 public:
  Planner(const Graph& graph, const CutList& cuts, const Sharing& sharing)
      : graph_(graph), parts_(graph.parts()), uses_(graph) {
    const auto stages = cuts.size() + 1;
    stage_of_.resize(parts_.nodes.size());
    for (std::size_t n = 0; n < parts_.nodes.size(); ++n) {
      stage_of_[n] = static_cast<int32_t>(std::ranges::upper_bound(cuts, n) - cuts.begin());
    }
    drafts_.resize(stages);
    find_inputs();
    states_ = plan_states(graph, uses_, stage_of_, static_cast<int32_t>(stages), sharing);
  }

  PipePlan run() {
    collect_needs();
    for (int32_t k = last(); k >= 0; --k) resolve(k);
    for (int32_t k = 0; k <= last(); ++k) tell_sizes(k);
    PipePlan plan{.stages = {}, .ties = states_.ties};
    for (int32_t k = 0; k <= last(); ++k) plan.stages.push_back(build(k));
    return plan;
  }

 private:
  struct Draft {
    std::set<ValueId> needs;          // made elsewhere
    std::set<int32_t> arguments;      // of the model
    std::set<std::string> keywords;   // of the model
    std::map<ValueId, int32_t> from;  // which stage sends it
    std::set<ValueId> outputs;
    std::set<int> size_outputs;  // sizes that it tells others
    std::map<int, int32_t> sizes_from;
  };

  /// Which argument of the model a leaf belongs to.
  struct ModelInput {
    std::optional<int32_t> argument;
    std::string keyword;
  };

  int32_t last() const { return static_cast<int32_t>(drafts_.size()) - 1; }

  void find_inputs() {
    std::size_t leaf = 0;
    auto add = [&](const TreeSpec& spec, const ModelInput& input) {
      for (std::size_t i = 0; i < spec.num_leaves(); ++i, ++leaf) {
        leaf_of_.push_back(input);
        if (const ValueId* value = parts_.inputs[leaf].value()) input_of_[*value] = input;
      }
    };
    const auto args = parts_.args.children();
    for (std::size_t i = 0; i < args.size(); ++i) add(args[i], {static_cast<int32_t>(i), ""});
    const auto kwargs = parts_.kwargs.children();
    for (std::size_t i = 0; i < kwargs.size(); ++i)
      add(kwargs[i], {std::nullopt, parts_.kwargs.key(i)});
    // What the model was captured with is checked where the pipe begins.
    for (std::size_t i = 0; i < parts_.inputs.size(); ++i) {
      if (parts_.inputs[i].fixed_value() != nullptr) feed(drafts_.front(), leaf_of_[i]);
    }
  }

  void collect_needs() {
    for (std::size_t n = 0; n < parts_.nodes.size(); ++n) {
      for (const Argument& argument : parts_.nodes[n].arguments) {
        for_each_value(argument, [&](ValueId value) { need(stage_of_[n], value); });
      }
    }
    for (const Argument& output : parts_.outputs) {
      for_each_value(output, [&](ValueId value) { need(last(), value); });
    }
  }

  void need(int32_t stage, ValueId value) {
    const ValueUses::Span span = uses_.of(value);
    if (span.is_state && states_.is_held(value, stage)) return;
    if (span.is_made_here() && stage_of_[to_size(span.made)] == stage) return;
    drafts_[to_size(stage)].needs.insert(value);
  }

  // The stage that has the value as `stage` must see it: that which makes it, or that which changed
  // its memory last. -1: the caller of the model.
  int32_t source(ValueId value, int32_t stage) const {
    const ValueUses::Span span = uses_.of(value);
    if (span.is_state) return states_.owner(value);
    int32_t result = span.is_made_here() ? stage_of_[to_size(span.made)] : -1;
    for (const int32_t node : uses_.memory_of(value).writes) {
      if (node > span.made && stage_of_[to_size(node)] < stage) {
        result = std::max(result, stage_of_[to_size(node)]);
      }
    }
    return result;
  }

  void resolve(int32_t k) {
    Draft& draft = drafts_[to_size(k)];
    for (const ValueId value : draft.needs) {
      const int32_t from = source(value, k);
      if (from < 0) {
        const ModelInput& input = input_of_.at(value);
        feed(draft, input);
        continue;
      }
      draft.from[value] = from;
      drafts_[to_size(from)].outputs.insert(value);
      need(from, value);
    }
  }

  static void feed(Draft& draft, const ModelInput& input) {
    if (input.argument) {
      draft.arguments.insert(*input.argument);
    } else {
      draft.keywords.insert(input.keyword);
    }
  }

  // Sizes that a stage needs and that its tensors do not tell come from an earlier stage that knows
  // them, else from an argument of the model.
  void tell_sizes(int32_t k) {
    const GraphParts parts = draft_parts(k);
    const SizeSet told = told_sizes(parts);
    SizeSet open = read_sizes(parts) & ~told;
    for (std::size_t i = parts.sizes.size(); i-- > 0;) {
      const auto& rule = parts.sizes[i].rule;
      if (!rule || (open >> i & 1) == 0) continue;
      open = (open & ~(SizeSet{1} << i)) | (rule->sizes() & ~told);
    }
    for (; open != 0; open &= open - 1) {
      const int size = std::countr_zero(open);
      int32_t from = 0;
      while (from < k && (told_sizes(draft_parts(from)) >> size & 1) == 0) ++from;
      if (from < k) {
        drafts_[to_size(from)].size_outputs.insert(size);
        drafts_[to_size(k)].sizes_from[size] = from;
        continue;
      }
      for (std::size_t leaf = 0; leaf < parts_.inputs.size(); ++leaf) {
        if (!tells(parts_.inputs[leaf], SizeSet{1} << size)) continue;
        feed(drafts_[to_size(k)], leaf_of_[leaf]);
        break;
      }
    }
  }

  /// Whether an input is the one size of a set, or has it in its shape without another.
  bool tells(const Argument& input, SizeSet size) const {
    if (input.size() != nullptr) return input.size()->sizes() == size;
    if (input.value() == nullptr) return false;
    return std::ranges::any_of(graph_.value(*input.value()).shape,
                               [&](const SizeExpr& dim) { return dim.sizes() == size; });
  }

  /// Those that the inputs of a stage tell, and those that it measures.
  static SizeSet told_sizes(const GraphParts& parts) {
    SizeSet told = known_sizes(parts);
    for (std::size_t i = 0; i < parts.sizes.size(); ++i) {
      if (parts.sizes[i].measured) told |= SizeSet{1} << i;
    }
    return with_rules(parts, told);
  }

  /// A further value like one that there is.
  static ValueId add_value(GraphParts& parts, ValueId like, std::string_view suffix) {
    GraphValue value = parts.values[to_size(like.value())];
    value.name += suffix;
    value.memory = -1;
    parts.values.push_back(std::move(value));
    return ValueId(static_cast<int32_t>(parts.values.size()) - 1);
  }

  bool is_written_in(ValueId value, int32_t stage) const {
    return std::ranges::any_of(uses_.memory_of(value).writes,
                               [&](int32_t node) { return stage_of_[to_size(node)] == stage; });
  }

  bool is_read_elsewhere(ValueId value, int32_t stage) const {
    return std::ranges::any_of(uses_.reads(value), [&](int32_t node) {
      return (node < static_cast<int32_t>(stage_of_.size()) ? stage_of_[to_size(node)] : last()) !=
             stage;
    });
  }

  // What a stage changes in place and others read too comes to it as a copy: stages work on their
  // microbatches side by side and may share memory.
  void copy_before_changes(GraphParts& parts, int32_t k) const {
    std::vector<GraphNode> copies;
    std::map<ValueId, ValueId> copied;
    for (const Argument& input : parts.inputs) {
      const ValueId* value = input.value();
      if (value == nullptr || to_size(value->value()) >= parts_.values.size()) continue;
      if (!is_written_in(*value, k) || !is_read_elsewhere(*value, k)) continue;
      const int32_t memory = parts.values[to_size(value->value())].memory;
      const ValueId copy = add_value(parts, *value, ".copy");
      parts.values[to_size(copy.value())].memory = memory;
      parts.values[to_size(value->value())].memory = -1;
      copied.emplace(*value, copy);
      GraphNode node;
      node.op = {"aten::clone", ""};
      node.name = parts.values[to_size(copy.value())].name;
      node.arguments = {*value, Argument()};
      node.results = {copy};
      copies.push_back(std::move(node));
    }
    if (copies.empty()) return;
    auto replace = [&](ValueId value) -> Argument {
      const auto found = copied.find(value);
      return found == copied.end() ? value : found->second;
    };
    for (GraphNode& node : parts.nodes) {
      for (Argument& argument : node.arguments) argument = map_values(argument, replace);
    }
    for (Argument& output : parts.outputs) output = map_values(output, replace);
    parts.nodes.insert(parts.nodes.begin(), copies.begin(), copies.end());
  }

  GraphParts draft_parts(int32_t k) const {
    const Draft& draft = drafts_[to_size(k)];
    GraphParts parts;
    parts.is_exported = parts_.is_exported;
    parts.sizes = parts_.sizes;
    for (GraphSize& size : parts.sizes) {
      if (size.measured && stage_of_[to_size(uses_.of(size.measured->value).made)] != k) {
        size.measured.reset();
        size.least = std::numeric_limits<int64_t>::min();
      }
    }
    parts.values = parts_.values;
    parts.states = states_.states[to_size(k)];
    for (const GraphState& state : parts.states) {
      parts.values[to_size(state.value.value())].name = states_.names[to_size(k)].at(state.value);
    }
    std::vector<TreeSpec> args;
    std::vector<std::string> names;
    std::vector<TreeSpec> kwargs;
    std::size_t leaf = 0;
    auto add = [&](const TreeSpec& spec, bool is_taken) {
      for (std::size_t i = 0; i < spec.num_leaves(); ++i, ++leaf) {
        if (!is_taken) continue;
        const ValueId* value = parts_.inputs[leaf].value();
        if (value != nullptr && draft.from.contains(*value)) {
          // A stage before has changed this leaf of a tree: what the caller gave is not read.
          parts.inputs.push_back(add_value(parts, *value, ".given"));
        } else {
          parts.inputs.push_back(parts_.inputs[leaf]);
        }
      }
    };
    const auto all_args = parts_.args.children();
    for (std::size_t i = 0; i < all_args.size(); ++i) {
      const bool is_taken = draft.arguments.contains(static_cast<int32_t>(i));
      if (is_taken) args.push_back(all_args[i]);
      add(all_args[i], is_taken);
    }
    std::vector<Argument> by_position = std::exchange(parts.inputs, {});
    const auto all_kwargs = parts_.kwargs.children();
    for (std::size_t i = 0; i < all_kwargs.size(); ++i) {
      const bool is_taken = draft.keywords.contains(parts_.kwargs.key(i));
      if (is_taken) {
        names.push_back(parts_.kwargs.key(i));
        kwargs.push_back(all_kwargs[i]);
      }
      add(all_kwargs[i], is_taken);
    }
    for (const auto& [value, from] : draft.from) {
      args.push_back(TreeSpec::leaf());
      by_position.emplace_back(value);
    }
    for (const auto& [size, from] : draft.sizes_from) {
      args.push_back(TreeSpec::leaf());
      by_position.emplace_back(SizeExpr::of_size(size));
    }
    parts.inputs.insert(parts.inputs.begin(), by_position.begin(), by_position.end());
    parts.args = TreeSpec::tuple(std::move(args));
    parts.kwargs = TreeSpec::dict(names, std::move(kwargs));
    for (std::size_t n = 0; n < parts_.nodes.size(); ++n) {
      if (stage_of_[n] == k && parts_.nodes[n].op.name != kSplitOperator) {
        parts.nodes.push_back(parts_.nodes[n]);
      }
    }
    if (k == last()) {
      parts.output = parts_.output;
      parts.outputs = parts_.outputs;
      copy_before_changes(parts, k);
      return parts;
    }
    for (const ValueId value : draft.outputs) parts.outputs.emplace_back(value);
    for (const int size : draft.size_outputs) parts.outputs.emplace_back(SizeExpr::of_size(size));
    parts.output = TreeSpec::tuple(std::vector<TreeSpec>(parts.outputs.size()));
    copy_before_changes(parts, k);
    return parts;
  }

  int32_t output_of(int32_t stage, ValueId value) const {
    const auto& outputs = drafts_[to_size(stage)].outputs;
    return static_cast<int32_t>(std::distance(outputs.begin(), outputs.find(value)));
  }
  int32_t output_of_size(int32_t stage, int size) const {
    const Draft& draft = drafts_[to_size(stage)];
    return static_cast<int32_t>(draft.outputs.size()) +
           static_cast<int32_t>(
               std::distance(draft.size_outputs.begin(), draft.size_outputs.find(size)));
  }

  StagePlan build(int32_t k) const {
    const Draft& draft = drafts_[to_size(k)];
    GraphParts parts = draft_parts(k);
    const SizeSet known = known_sizes(parts);
    std::ranges::copy_if(
        parts_.guards, std::back_inserter(parts.guards),
        [&](const GraphGuard& guard) { return (guard.holds.sizes() & ~known) == 0; });
    StagePlan plan{.graph = Graph(compact(std::move(parts))), .sources = {}};
    for (const int32_t argument : draft.arguments)
      plan.sources.emplace_back(FromArgument{argument});
    for (const auto& [value, from] : draft.from) {
      plan.sources.emplace_back(OutputPort{StageId(from), output_of(from, value)});
    }
    for (const auto& [size, from] : draft.sizes_from) {
      plan.sources.emplace_back(OutputPort{StageId(from), output_of_size(from, size)});
    }
    return plan;
  }

  const Graph& graph_;
  const GraphParts& parts_;
  ValueUses uses_;
  std::vector<int32_t> stage_of_;
  std::vector<Draft> drafts_;
  std::vector<ModelInput> leaf_of_;
  std::map<ValueId, ModelInput> input_of_;
  StatePlan states_;
};

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

PipePlan plan_stages(const Graph& graph, const CutList& cuts, const Sharing& sharing) {
  return Planner(graph, cuts, sharing).run();
}

}  // namespace stagecraft
