#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/model/module_tree.h"
#include "stagecraft/graph/graph.h"
#include "stagecraft/partition/boundaries.h"
#include "stagecraft/partition/module_split.h"
#include "stagecraft/partition/pipe.h"
#include "stagecraft/partition/split.h"

namespace stagecraft::cli {

/// A module with operators in a stage.
struct StagePart {
  std::string name;  ///< empty: operators of no module
  int64_t operators = 0;
  bool is_whole = true;  ///< all operators of the module are here
};

/// A value that crosses a boundary.
struct CrossingFacts {
  std::string name;
  std::string type;  ///< float32[batch, 16]
  int64_t bytes = 0;
  int32_t from = 0;         ///< the stage that makes it
  std::vector<int32_t> to;  ///< the stages after the boundary that read it
};

/// One stage, and the boundary before it.
struct StageFacts {
  StageSummary summary;
  std::size_t first = 0;  ///< its first node
  std::string begins;     ///< its beginning as --split names it; empty if it has no name
  std::string node;       ///< the name of that node
  std::vector<StagePart> parts;
  std::vector<CrossingFacts> receives;  ///< all values that cross the boundary before it
};

/// A model that is split into stages.
struct SplitFacts {
  std::vector<StageFacts> stages;
  std::optional<std::string> split;  ///< the --split that gives the same stages, if there is one
  /// For a best split: the best split at layers or similar modules, if it is different and its
  /// largest stage is at most half as large again.
  std::optional<ModuleSplit> at_modules;
  std::vector<TiedWeight> ties;
};

/// The stages that `split` makes. Throws what find_split_positions throws.
SplitFacts split_facts(const Graph& graph, const Split& split, const ModuleTree& tree,
                       const std::vector<Boundary>& boundaries);

}  // namespace stagecraft::cli
