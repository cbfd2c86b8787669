#include "stagecraft/partition/state_plan.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string_view>
#include <utility>

#include <c10/core/GradMode.h>

#include "stagecraft/base/check.h"

namespace stagecraft {

namespace {

std::size_t common_prefix(std::string_view a, std::string_view b) {
  const auto [end, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<std::size_t>(end - a.begin());
}

class StatePlanner {
 public:
  StatePlanner(const Graph& graph, const ValueUses& uses, const std::vector<int32_t>& stage_of,
               int32_t stages, const Sharing& sharing)
      : graph_(graph), uses_(uses), stage_of_(stage_of), stages_(stages), sharing_(sharing) {
    plan_.states.resize(static_cast<std::size_t>(stages));
    plan_.names.resize(static_cast<std::size_t>(stages));
    for (const auto& [name, how] : sharing.by_name) {
      const GraphState* state = graph.find_state(name);
      require<ArgumentError>(state != nullptr && state->kind == GraphState::Kind::kParameter,
                             "sharing: there is no parameter '{}'", name);
    }
  }

  StatePlan run() {
    std::vector<const GraphState*> unread;
    for (const GraphState& state : graph_.parts().states) {
      std::map<int32_t, std::vector<std::string>> names = names_by_stage(state);
      if (names.empty()) {
        unread.push_back(&state);
        continue;
      }
      // Names without a read go to the first stage that holds the tensor.
      std::set<std::string> given;
      for (const auto& [stage, some] : names) given.insert(some.begin(), some.end());
      for (const std::string& name : names_of(state)) {
        if (!given.contains(name)) names.begin()->second.push_back(name);
      }
      place(state, std::move(names));
    }
    for (const GraphState* state : unread) place_unread(*state);
    return std::move(plan_);
  }

 private:
  std::vector<std::string> names_of(const GraphState& state) const {
    std::vector<std::string> names = {graph_.value(state.value).name};
    names.insert(names.end(), state.other_names.begin(), state.other_names.end());
    return names;
  }

  std::map<int32_t, std::vector<std::string>> names_by_stage(const GraphState& state) const {
    const std::vector<std::string> names = names_of(state);
    std::map<int32_t, std::vector<std::string>> result;
    const std::vector<int32_t>& reads = uses_.reads(state.value);
    for (std::size_t read = 0; read < reads.size(); ++read) {
      const int32_t node = reads[read];
      const bool is_output = node == static_cast<int32_t>(stage_of_.size());
      const int32_t stage = is_output ? stages_ - 1 : stage_of_[static_cast<std::size_t>(node)];
      const std::string& name = names[name_of_read(read, reads.size(), names.size())];
      auto& here = result[stage];
      if (std::ranges::count(here, name) == 0) here.push_back(name);
    }
    return result;
  }

  SharedParameter sharing_of(const GraphState& state) const {
    for (const std::string& name : names_of(state)) {
      const auto found = sharing_.by_name.find(name);
      if (found != sharing_.by_name.end()) return found->second;
    }
    return sharing_.by_default;
  }

  void place(const GraphState& state, std::map<int32_t, std::vector<std::string>> names) {
    const int32_t owner = names.begin()->first;
    const bool is_parameter = state.kind == GraphState::Kind::kParameter;
    plan_.owners[state.value] = owner;
    if (is_parameter && sharing_of(state) == SharedParameter::kTransmit) {
      hold(state, owner, names_of(state), state.tensor);
      return;
    }
    // A state that is not trained needs no copies: the stages hold one tensor.
    const bool is_trained = is_parameter && state.tensor.requires_grad();
    TiedWeight tie;
    for (auto& [stage, own] : names) {
      at::Tensor tensor = state.tensor;
      if (is_trained && stage != owner) {
        const c10::NoGradGuard no_grad;
        tensor = state.tensor.detach().clone().requires_grad_();
      }
      tie.push_back({StageId(stage), own.front()});
      hold(state, stage, std::move(own), std::move(tensor));
    }
    if (is_trained && tie.size() > 1) plan_.ties.push_back(std::move(tie));
  }

  void hold(const GraphState& state, int32_t stage, std::vector<std::string> names,
            at::Tensor tensor) {
    GraphState mine = state;
    mine.tensor = std::move(tensor);
    mine.other_names.assign(names.begin() + 1, names.end());
    plan_.states[static_cast<std::size_t>(stage)].push_back(std::move(mine));
    plan_.names[static_cast<std::size_t>(stage)][state.value] = std::move(names.front());
  }

  // Places a state that no operator reads in the stage of the state with the longest common
  // beginning of the name.
  void place_unread(const GraphState& state) {
    const std::string& name = graph_.value(state.value).name;
    int32_t stage = 0;
    std::size_t best = 0;
    for (int32_t k = 0; k < stages_; ++k) {
      for (const GraphState& held : plan_.states[static_cast<std::size_t>(k)]) {
        if (held.kind == GraphState::Kind::kConstant) continue;
        const std::size_t length = common_prefix(name, graph_.value(held.value).name);
        if (length > best) {
          best = length;
          stage = k;
        }
      }
    }
    plan_.owners[state.value] = stage;
    hold(state, stage, names_of(state), state.tensor);
  }

  const Graph& graph_;
  const ValueUses& uses_;
  const std::vector<int32_t>& stage_of_;
  int32_t stages_;
  const Sharing& sharing_;
  StatePlan plan_;
};

}  // namespace

StatePlan plan_states(const Graph& graph, const ValueUses& uses,
                      const std::vector<int32_t>& stage_of, int32_t stages,
                      const Sharing& sharing) {
  return StatePlanner(graph, uses, stage_of, stages, sharing).run();
}

}  // namespace stagecraft
