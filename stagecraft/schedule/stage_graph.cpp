#include "stagecraft/schedule/stage_graph.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "stagecraft/base/check.h"
#include "stagecraft/base/text_cursor.h"
#include "stagecraft/schedule/action.h"

namespace stagecraft {
namespace {

bool before(const StageEdge& a, const StageEdge& b) {
  return std::pair(a.from, a.to) < std::pair(b.from, b.to);
}

StageId read_stage(TextCursor& in) {
  in.skip_space();
  const int64_t stage = in.peek() == '-' ? -1 : in.read_integer();
  if (stage < 0 || stage > Action::kMaxStage) {
    in.fail(fmt::format("expected a stage from 0 to {}", Action::kMaxStage));
  }
  in.skip_space();
  return StageId(static_cast<int32_t>(stage));
}

}  // namespace

StageGraph StageGraph::chain(int32_t stages) {
  require<ArgumentError>(stages >= 1, "a stage graph needs at least 1 stage, got {}", stages);
  std::vector<StageEdge> edges;
  edges.reserve(static_cast<std::size_t>(stages) - 1);
  for (int32_t s = 0; s + 1 < stages; ++s) edges.push_back({StageId(s), StageId(s + 1)});
  return {stages, std::move(edges)};
}

StageGraph StageGraph::of(int32_t stages, std::vector<StageEdge> edges) {
  require<ArgumentError>(stages >= 1, "a stage graph needs at least 1 stage, got {}", stages);
  for (const StageEdge& edge : edges) {
    require<ArgumentError>(
        edge.from >= StageId(0) && edge.from < edge.to && edge.to < StageId(stages),
        "an edge leads from a stage to a later one of the {} stages, got {}-{}", stages,
        edge.from.value(), edge.to.value());
  }
  std::sort(edges.begin(), edges.end(), before);
  const auto twice = std::adjacent_find(edges.begin(), edges.end());
  if (twice != edges.end()) {
    throw ArgumentError(
        fmt::format("edge {}-{} is given twice", twice->from.value(), twice->to.value()));
  }
  return {stages, std::move(edges)};
}

StageGraph StageGraph::with_edges(std::span<const StageEdge> edges) const {
  std::vector<StageEdge> all = edges_;
  for (const StageEdge& edge : edges) {
    if (std::find(all.begin(), all.end(), edge) == all.end()) all.push_back(edge);
  }
  return of(num_stages(), std::move(all));
}

StageGraph::StageGraph(int32_t stages, std::vector<StageEdge> edges)
    : edges_(std::move(edges)),
      first_consumer_(static_cast<std::size_t>(stages) + 1, 0),
      first_producer_(static_cast<std::size_t>(stages) + 1, 0) {
  for (const StageEdge& edge : edges_) {
    ++first_consumer_[edge.from.value() + 1];
    ++first_producer_[edge.to.value() + 1];
  }
  std::partial_sum(first_consumer_.begin(), first_consumer_.end(), first_consumer_.begin());
  std::partial_sum(first_producer_.begin(), first_producer_.end(), first_producer_.begin());
  consumers_.resize(edges_.size());
  producers_.resize(edges_.size());
  std::vector<int32_t> next_consumer = first_consumer_;
  std::vector<int32_t> next_producer = first_producer_;
  for (const StageEdge& edge : edges_) {
    consumers_[next_consumer[edge.from.value()]++] = edge.to;
    producers_[next_producer[edge.to.value()]++] = edge.from;
  }
}

std::vector<StageEdge> parse_edges(std::string_view text) {
  TextCursor in(text);
  std::vector<StageEdge> edges;
  in.skip_space();
  if (in.at_end()) return edges;
  do {
    const StageId from = read_stage(in);
    in.expect("-");
    edges.push_back({from, read_stage(in)});
  } while (in.accept(","));
  in.expect_end();
  return edges;
}

std::string to_string(std::span<const StageEdge> edges) {
  std::string text;
  for (const StageEdge& edge : edges) {
    if (!text.empty()) text += ',';
    text += fmt::format("{}-{}", edge.from.value(), edge.to.value());
  }
  return text;
}

}  // namespace stagecraft
