#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/model/borders.h"

namespace stagecraft::cli {

/// A cut between modules.
struct ModuleCut {
  std::vector<std::string> names;  ///< of the modules that stages begin with
  int64_t flops = 0;               ///< of the stage with the most
  int64_t bytes = 0;               ///< over the border with the most
};

/// The cut into `stages` at the beginnings of modules, down to `depth`, that leaves the least to
/// the stage with the most FLOP; of several that with the fewest bytes over a border. Nothing where
/// there are not so many modules, or too many to try.
std::optional<ModuleCut> cut_at_modules(const std::vector<BorderFacts>& borders,
                                        int64_t total_flops, std::size_t stages, std::size_t depth);

}  // namespace stagecraft::cli
