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

/// A module of which a stage has operators.
struct StagePart {
  std::string name;  ///< empty: the model's own operators
  int64_t operators = 0;
  bool is_whole = true;  ///< all of the module's are here
};

/// A value that goes over a border.
struct CrossingFacts {
  std::string name;
  std::string type;  ///< float32[batch, 16]
  int64_t bytes = 0;
  int32_t from = 0;         ///< the stage that makes it
  std::vector<int32_t> to;  ///< the stages behind the border that read it
};

/// One stage, and the border before it.
struct StageFacts {
  StageSummary summary;
  std::size_t first = 0;  ///< the node that it begins with
  std::string begins;     ///< what --split calls its beginning; empty where it has no name
  std::string node;       ///< the name of that node
  std::vector<StagePart> parts;
  std::vector<CrossingFacts> receives;  ///< all that goes over the border before it
};

/// A model cut into stages.
struct CutFacts {
  std::vector<StageFacts> stages;
  std::optional<std::string> split;  ///< the --split that gives the same cut, where there is one
  /// Beside a best cut: the best at layers, or what is like them, where that is another and its
  /// largest stage at most half as large again.
  std::optional<ModuleSplit> at_modules;
  std::vector<TiedWeight> ties;
};

/// The cut that `split` makes. ArgumentError as find_cuts does.
CutFacts cut_of(const Graph& graph, const Split& split, const ModuleTree& tree,
                const std::vector<Boundary>& borders);

}  // namespace stagecraft::cli
