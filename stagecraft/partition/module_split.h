#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stagecraft/partition/boundaries.h"

namespace stagecraft {

/// A split at the beginnings of modules.
struct ModuleSplit {
  std::vector<std::size_t> positions;  ///< the first node of each stage except stage 0
  std::vector<std::string> names;      ///< the modules that begin there
  int64_t flops = 0;                   ///< FLOP of the stage with the most
  int64_t bytes = 0;                   ///< bytes over the boundary with the most
};

/// The split into `stages` at the beginnings of modules, down to `depth`, whose largest stage has
/// the fewest FLOP. If there are several, the one whose largest boundary has the fewest bytes.
/// Nothing if too few modules begin at a legal split point, or if there are too many to try.
std::optional<ModuleSplit> best_module_split(const std::vector<Boundary>& boundaries,
                                             int64_t total_flops, std::size_t stages,
                                             std::size_t depth);

}  // namespace stagecraft
