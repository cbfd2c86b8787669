#include "cli/model/program_view.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "stagecraft/base/error.h"
#include "stagecraft/partition/module_split.h"
#include "stagecraft/partition/modules.h"
#include "stagecraft/partition/split_text.h"

namespace stagecraft::cli {
namespace {

constexpr std::array<int32_t, 3> kDefaultStages = {2, 4, 8};

int64_t most_flops(const SplitFacts& split) {
  int64_t most = 0;
  for (const StageFacts& stage : split.stages) most = std::max(most, stage.summary.flops);
  return most;
}

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
      layer_depth(ModuleExtents(graph).layer_depth()),
      boundaries(find_boundaries(graph, costs)) {
  if (command.split) {
    splits.push_back(split_facts(graph, parse_split(*command.split), tree, boundaries));
    return;
  }
  if (command.stages) {
    add_best_split(*command.stages);
    return;
  }
  for (const int32_t stages : kDefaultStages) {
    if (stages > num_legal() + 1) break;
    try {
      add_best_split(stages);
    } catch (const Error& error) {
      // A split that is not possible is noted. Everything else is still shown.
      not_split.push_back(fmt::format("into {} stages: {}", stages, error.what()));
    }
  }
}

int64_t ProgramView::num_legal() const {
  return std::ranges::count_if(boundaries, &Boundary::is_legal);
}

void ProgramView::add_best_split(int32_t stages) {
  SplitFacts split = split_facts(graph, {.policy = equal_cost(stages)}, tree, boundaries);
  auto at_modules = best_module_split(boundaries, costs.total_flops,
                                      static_cast<std::size_t>(stages), layer_depth);
  const bool is_another =
      at_modules && fmt::format("{}", fmt::join(at_modules->names, ",")) != split.split;
  if (is_another && 2 * at_modules->flops <= 3 * most_flops(split)) {
    split.at_modules = std::move(at_modules);
  }
  splits.push_back(std::move(split));
}

}  // namespace stagecraft::cli
