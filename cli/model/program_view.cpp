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

int64_t most_flops(const CutFacts& cut) {
  int64_t most = 0;
  for (const StageFacts& stage : cut.stages) most = std::max(most, stage.summary.flops);
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
      borders(find_boundaries(graph, costs)) {
  if (command.split) {
    cuts.push_back(cut_of(graph, parse_split(*command.split), tree, borders));
    return;
  }
  if (command.stages) {
    add_best_cut(*command.stages);
    return;
  }
  for (const int32_t stages : kDefaultStages) {
    if (stages > num_legal() + 1) break;
    try {
      add_best_cut(stages);
    } catch (const Error& error) {
      // All else is as good as before.
      not_cut.push_back(fmt::format("into {} stages: {}", stages, error.what()));
    }
  }
}

int64_t ProgramView::num_legal() const {
  return std::ranges::count_if(borders, &Boundary::is_legal);
}

void ProgramView::add_best_cut(int32_t stages) {
  CutFacts cut = cut_of(graph, {.policy = equal_cost(stages)}, tree, borders);
  auto at_modules =
      best_module_split(borders, costs.total_flops, static_cast<std::size_t>(stages), layer_depth);
  const bool is_another =
      at_modules && fmt::format("{}", fmt::join(at_modules->names, ",")) != cut.split;
  if (is_another && 2 * at_modules->flops <= 3 * most_flops(cut)) {
    cut.at_modules = std::move(at_modules);
  }
  cuts.push_back(std::move(cut));
}

}  // namespace stagecraft::cli
