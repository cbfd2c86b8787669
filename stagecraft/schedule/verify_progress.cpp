#include <fmt/format.h>

#include "stagecraft/schedule/list_runner.h"
#include "stagecraft/schedule/needs.h"
#include "stagecraft/schedule/passes/pass_input.h"
#include "stagecraft/schedule/verify_parts.h"

namespace stagecraft {
namespace {

// Every waiting rank waits for a rank that waits, too. Following the waits from any of them
// therefore leads into a cycle.
class CycleFinder {
 public:
  CycleFinder(const Schedule& schedule, const ListRunner& runner, Findings& findings)
      : schedule_(schedule),
        runner_(runner),
        findings_(findings),
        seen_(schedule.lists().size(), 0) {}

  void report() {
    for (std::size_t r = 0; r < seen_.size(); ++r) {
      if (seen_[r] != 0 || runner_.head(r) == schedule_.lists()[r].size()) continue;
      const std::size_t walk = r + 1;
      std::size_t at = r;
      while (seen_[at] == 0) {
        seen_[at] = walk;
        at = runner_.wait(at).rank;
      }
      if (seen_[at] == walk) report_cycle(at);
    }
  }

 private:
  Slot head_slot(std::size_t rank) const {
    return slot_at(schedule_.lists()[rank], runner_.head(rank));
  }

  void report_cycle(std::size_t start) {
    Finding finding;
    finding.rank = Rank(static_cast<int32_t>(start));
    finding.position = head_slot(start).position();
    finding.action = to_string(head_slot(start));
    const bool is_alone = runner_.wait(start).rank == start;
    finding.kind = is_alone ? FindingKind::kOrder : FindingKind::kDeadlock;
    std::string ring;
    std::size_t rank = start;
    do {
      const ListRunner::Wait& wait = runner_.wait(rank);
      const Slot slot = head_slot(rank);
      const std::string needed = to_string(schedule_.lists()[wait.rank][wait.offset]);
      const int64_t needed_at = findings_.slot_position(wait.rank, wait.offset);
      finding.cycle.push_back(to_string(slot));
      finding.cycle.push_back(needed);
      if (is_alone) {
        finding.message =
            needed_at == slot.position()
                ? fmt::format("needs {}, a part of the same overlap", needed)
                : fmt::format("needs {}, which comes later, at slot {}", needed, needed_at);
      } else {
        if (!ring.empty()) ring += "; ";
        ring += fmt::format("rank {} at slot {}, {}, waits for {} (rank {}, slot {})", rank,
                            slot.position(), to_string(slot), needed, wait.rank, needed_at);
      }
      rank = wait.rank;
    } while (rank != start);
    if (!is_alone) finding.message = "ranks wait for each other: " + ring;
    findings_.add(std::move(finding));
  }

  const Schedule& schedule_;
  const ListRunner& runner_;
  Findings& findings_;
  std::vector<std::size_t> seen_;  // by which walk, from 1
};

}  // namespace

void verify_progress(const Schedule& schedule, const StageGraph& graph, const ActionIndex& index,
                     Findings& findings) {
  // In a schedule with waits, a send only posts. The wait defines when the send must be complete.
  const bool has_waits =
      has_any(schedule, {ActionType::kWaitSendForward, ActionType::kWaitSendBackward});
  const Needs needs(schedule, graph, has_waits ? Needs::Blocks::kWaits : Needs::Blocks::kSends);
  ListRunner runner(schedule, index, needs);
  if (runner.run([](std::size_t, std::size_t, std::size_t) {})) return;
  CycleFinder(schedule, runner, findings).report();
}

}  // namespace stagecraft
