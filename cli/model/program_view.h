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

/// Everything that is shown about one program of an archive.
struct ProgramView {
  /// ArgumentError for a split that is not possible; otherwise throws what ExportedArchive::graph
  /// throws.
  ProgramView(const ExportedArchive& archive, std::string program, const ModelCommand& command);

  std::string name;
  std::string torch_version;
  std::vector<std::string> warnings;
  Graph graph;
  ModelFacts facts;
  NodeCosts costs;
  ModuleTree tree;
  std::size_t layer_depth = 2;  ///< ModuleExtents::layer_depth
  std::vector<Boundary> boundaries;
  /// The requested split; otherwise the best splits into 2, 4 and 8 stages, as far as they are
  /// possible.
  std::vector<SplitFacts> splits;
  /// Why a split into 2, 4 or 8 stages is not possible.
  std::vector<std::string> not_split;

 private:
  int64_t num_legal() const;
  void add_best_split(int32_t stages);
};

}  // namespace stagecraft::cli
