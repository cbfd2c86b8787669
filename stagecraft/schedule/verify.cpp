#include "stagecraft/schedule/verify.h"

#include <algorithm>

#include "stagecraft/base/check.h"
#include "stagecraft/schedule/verify_parts.h"

namespace stagecraft {

std::string_view to_string(VerifyMode mode) {
  switch (mode) {
    case VerifyMode::kTraining:
      return "training";
    case VerifyMode::kForwardOnly:
      return "forward-only";
    case VerifyMode::kPartial:
      return "partial";
  }
  return "";
}

VerifyMode infer_mode(const Schedule& schedule) {
  for (const ActionList& list : schedule.lists()) {
    const bool has_backward = std::any_of(list.begin(), list.end(), [](Action action) {
      return is_compute(action.type()) && action.type() != ActionType::kForward;
    });
    if (has_backward) return VerifyMode::kTraining;
  }
  return VerifyMode::kForwardOnly;
}

std::string_view to_string(FindingKind kind) {
  switch (kind) {
    case FindingKind::kPlacement:
      return "placement";
    case FindingKind::kMissing:
      return "missing";
    case FindingKind::kDuplicate:
      return "duplicate";
    case FindingKind::kUnexpected:
      return "unexpected";
    case FindingKind::kOrder:
      return "order";
    case FindingKind::kDeadlock:
      return "deadlock";
    case FindingKind::kSharding:
      return "sharding";
    case FindingKind::kReduceGrad:
      return "reduce-grad";
  }
  return "";
}

std::string to_string(const Finding& finding) {
  std::string place;
  const auto add = [&](const std::string& text) {
    if (!place.empty()) place += ", ";
    place += text;
  };
  if (finding.rank) add(fmt::format("rank {}", finding.rank->value()));
  if (finding.position) add(fmt::format("slot {}", *finding.position));
  if (!finding.action.empty()) add(finding.action);
  return place.empty() ? finding.message : place + ": " + finding.message;
}

Verdict verify(const Schedule& schedule, const StageGraph& graph, const VerifyOptions& options) {
  require<ArgumentError>(graph.num_stages() == schedule.num_stages() || schedule.num_stages() == 0,
                         "the stage graph has {} stages, but the schedule has {}",
                         graph.num_stages(), schedule.num_stages());
  const std::vector<int32_t>& lookahead = options.unshard_lookahead;
  require<ArgumentError>(
      lookahead.empty() || (std::ssize(lookahead) == schedule.num_ranks() &&
                            *std::min_element(lookahead.begin(), lookahead.end()) >= 1),
      "expected a lookahead of at least 1 for each of {} ranks, got {} numbers, the smallest {}",
      schedule.num_ranks(), lookahead.size(),
      lookahead.empty() ? 0 : *std::min_element(lookahead.begin(), lookahead.end()));
  Findings findings(schedule, options.max_findings);
  ActionIndex index(schedule);
  const bool goes_on = verify_places(schedule, options, index, findings);
  verify_complete(schedule, graph, options, index, findings);
  verify_sharding(schedule, options, findings);
  if (goes_on) verify_progress(schedule, graph, index, findings);
  return findings.take();
}

Verdict verify(const Schedule& schedule, const VerifyOptions& options) {
  return verify(schedule, StageGraph::chain(std::max(schedule.num_stages(), 1)), options);
}

void verify_or_throw(const Schedule& schedule, const StageGraph& graph, std::string_view what,
                     const VerifyOptions& options) {
  VerifyOptions keeping = options;
  keeping.max_findings = std::max<std::size_t>(options.max_findings, 1);
  const Verdict verdict = verify(schedule, graph, keeping);
  if (verdict.ok()) return;
  std::vector<std::string> actions;
  for (const Finding& finding : verdict.findings) {
    if (!finding.action.empty()) actions.push_back(finding.action);
  }
  std::string message = fmt::format("{}: {}", what, to_string(verdict.findings.front()));
  if (verdict.num_findings > 1) {
    message += fmt::format(" (and {} more)", verdict.num_findings - 1);
  }
  throw ScheduleError(message, std::move(actions));
}

}  // namespace stagecraft
