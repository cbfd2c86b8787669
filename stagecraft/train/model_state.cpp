#include "stagecraft/train/model_state.h"

#include <algorithm>
#include <map>
#include <utility>

namespace stagecraft {

std::vector<ModelState> model_states(const Pipe& pipe) {
  std::vector<ModelState> states;
  std::map<const GraphState*, std::size_t> places;
  for (const GraphState& state : pipe.graph().parts().states) {
    if (state.kind == GraphState::Kind::kConstant || !state.is_persistent) continue;
    places.emplace(&state, states.size());
    ModelState& whole = states.emplace_back();
    whole.name = pipe.graph().value(state.value).name;
    whole.is_parameter = state.kind == GraphState::Kind::kParameter;
  }
  for (int32_t s = 0; s < pipe.num_stages(); ++s) {
    const Graph& graph = pipe.stage_graph(StageId(s));
    for (const GraphState& state : graph.parts().states) {
      const auto place = places.find(pipe.graph().find_state(graph.value(state.value).name));
      if (place == places.end()) continue;
      ModelState& whole = states[place->second];
      if (whole.copies.empty()) whole.stage = StageId(s);
      // A tensor that several stages share is listed once.
      const bool is_known =
          std::any_of(whole.copies.begin(), whole.copies.end(),
                      [&](const auto& copy) { return copy.is_same(state.tensor); });
      if (!is_known) whole.copies.push_back(state.tensor);
    }
  }
  return states;
}

}  // namespace stagecraft
