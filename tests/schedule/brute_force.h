#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

/// A second opinion on `verify`, from the definition alone: it reads the text of the actions
/// itself, counts, and then executes the lists for real. Nothing here may come from the library.
namespace brute_force {

/// The fields of a schedule's CSV, one list a rank; "" is idle.
using Lists = std::vector<std::vector<std::string>>;

/// What the schedule has to be complete for.
struct Problem {
  std::vector<int> rank_of;                ///< by stage
  int microbatches = 0;                    ///< 0 up to this one
  std::vector<std::pair<int, int>> edges;  ///< (from, to) stages
  bool lowered = true;                     ///< transfers are written out, no idle slots
  bool backward = true;                    ///< otherwise F alone
};

enum class Answer : uint8_t {
  kExecutable,
  kBadText,      ///< a field that is no action, an idle slot where none may be
  kMisplaced,    ///< a stage or microbatch that does not exist, or is on a different rank
  kIncomplete,   ///< an action that is missing, there twice, or does not belong there
  kBadSharding,  ///< UNSHARD, RESHARD or REDUCE_GRAD out of place
  kStuck,        ///< executed in order, the lists do not end
};

/// `stuck`, if given, gets the field at which each rank stands still, of those that do.
Answer answer(const Lists& lists, const Problem& problem,
              std::vector<std::string>* stuck = nullptr);

}  // namespace brute_force
