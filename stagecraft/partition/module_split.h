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
  std::vector<std::size_t> positions;  ///< of the first node of each stage but the first
  std::vector<std::string> names;      ///< of the modules that begin there
  int64_t flops = 0;                   ///< of the stage with the most
  int64_t bytes = 0;                   ///< over the boundary with the most
};

/// The split into `stages` at the beginnings of modules, down to `depth`, whose largest stage has
/// the fewest FLOP; of several, the one with the fewest bytes over a boundary. Nothing if too few
/// modules begin at a legal split point, or too many to try.
std::optional<ModuleSplit> best_module_split(const std::vector<Boundary>& boundaries,
                                             int64_t total_flops, std::size_t stages,
                                             std::size_t depth);

}  // namespace stagecraft
