#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "cli/model/command.h"
#include "cli/model/facts.h"
#include "cli/model/module_tree.h"
#include "cli/model/stages.h"
#include "stagecraft/exported/exported_archive.h"
#include "stagecraft/graph/graph.h"
#include "stagecraft/partition/boundaries.h"
#include "stagecraft/partition/node_costs.h"

namespace stagecraft::cli {

/// All that there is to say of one program of an archive.
struct ProgramView {
  /// ArgumentError for a cut that is not possible, otherwise as ExportedArchive::graph.
  ProgramView(const ExportedArchive& archive, std::string program, const ModelCommand& command);

  std::string name;
  std::string torch_version;
  std::vector<std::string> warnings;
  Graph graph;
  ModelFacts facts;
  NodeCosts costs;
  ModuleTree tree;
  std::size_t layer_depth = 2;  ///< ModuleExtents::layer_depth
  std::vector<Boundary> borders;
  /// Those that were asked for; otherwise the best into 2, 4 and 8 stages, where there are so many.
  std::vector<CutFacts> cuts;
  /// Why one of those that nobody asked for could not be made.
  std::vector<std::string> not_cut;

 private:
  int64_t num_legal() const;
  void add_best_cut(int32_t stages);
};

}  // namespace stagecraft::cli
