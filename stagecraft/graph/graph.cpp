#include "stagecraft/graph/graph.h"

#include <algorithm>
#include <utility>

namespace stagecraft {

Graph::Graph(GraphParts parts) {
  if (const auto wrong = verify(parts)) throw GraphError(*wrong);
  parts_ = std::make_shared<const GraphParts>(std::move(parts));
}

std::vector<std::string> Graph::size_names() const {
  std::vector<std::string> names;
  for (const GraphSize& size : parts_->sizes) names.push_back(size.name);
  return names;
}

const GraphState* Graph::find_state(std::string_view name) const {
  for (const GraphState& state : parts_->states) {
    if (value(state.value).name == name || std::ranges::count(state.other_names, name) > 0) {
      return &state;
    }
  }
  return nullptr;
}

}  // namespace stagecraft
