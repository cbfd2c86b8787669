#include "stagecraft/plan/known_seeds.h"

#include <optional>

#include "stagecraft/schedule/builders/builders.h"

namespace stagecraft::plan {

std::vector<std::pair<std::string, Words>> known_seeds(const ScheduleProblem& problem,
                                                       const Instance& in) {
  std::vector<std::pair<std::string, Words>> seeds;
  if (in.stages % in.ranks != 0) return seeds;
  const Dims dims{in.ranks, in.stages / in.ranks, in.microbatches};
  for (const ScheduleKind& kind : schedule_kinds()) {
    if (!kind.has_backward || !kind.takes(dims)) continue;
    const Schedule schedule = kind.build(
        {.ranks = dims.p, .microbatches = problem.microbatches, .stages_per_rank = dims.l});
    if (std::optional<Words> words = to_words(in, schedule)) {
      seeds.emplace_back(kind.name, std::move(*words));
    }
  }
  return seeds;
}

}  // namespace stagecraft::plan
