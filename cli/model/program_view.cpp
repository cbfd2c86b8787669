#include "cli/model/program_view.h"

#include <algorithm>
#include <array>
#include <utility>

#include "stagecraft/partition/split_places.h"

namespace stagecraft::cli {
namespace {

constexpr std::array<int32_t, 3> kDefaultStages = {2, 4, 8};

}  // namespace

ProgramView::ProgramView(const ExportedArchive& archive, std::string program,
                         const ModelCommand& command)
    : name(std::move(program)),
      torch_version(archive.torch_version(name)),
      warnings(archive.warnings(name)),
      graph(archive.graph(name)),
      facts(facts_of(graph)),
      costs(graph),
      tree(graph, costs),
      borders(borders_of(graph, costs, tree, SplitPlaces(graph))) {
  auto add = [&](const Split& split) { cuts.push_back(cut_of(graph, split, tree, borders)); };
  if (command.split) add(parse_split(*command.split));
  if (command.stages) add({.policy = equal_cost(*command.stages)});
  if (command.split || command.stages) return;
  const auto legal = std::ranges::count_if(borders, &BorderFacts::is_legal);
  for (const int32_t stages : kDefaultStages) {
    if (stages <= legal + 1) add({.policy = equal_cost(stages)});
  }
}

}  // namespace stagecraft::cli
