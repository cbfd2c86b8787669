#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "stagecraft/schedule/action_index.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/verify.h"

namespace stagecraft {

/// Collects the findings of the parts of `verify`, and looks up the places of actions for them.
class Findings {
 public:
  Findings(const Schedule& schedule, std::size_t limit)
      : schedule_(schedule), limit_(limit), positions_(schedule.lists().size()) {}

  /// A finding about the action at `offset` of the rank's list. `message` is called only if the
  /// finding is kept.
  template <typename Message>
  void add_at(FindingKind kind, std::size_t rank, std::size_t offset, Message&& message) {
    ++count_;
    if (kept_.size() < limit_) keep_at(kind, rank, offset, message());
  }
  /// A finding about an action that is missing, or about no action.
  template <typename Message>
  void add(FindingKind kind, std::string action, Message&& message) {
    ++count_;
    if (kept_.size() < limit_) {
      kept_.push_back({kind, std::nullopt, std::nullopt, std::move(action), message(), {}});
    }
  }
  void add(Finding finding) {
    ++count_;
    if (kept_.size() < limit_) kept_.push_back(std::move(finding));
  }

  std::size_t count() const { return count_; }

  /// "slot 7"
  std::string slot_text(std::size_t rank, std::size_t offset) const;
  int64_t slot_position(std::size_t rank, std::size_t offset) const;
  /// Rank and offset of a place.
  std::pair<std::size_t, std::size_t> locate(const ActionIndex& index, uint32_t place) const;

  Verdict take() { return {std::move(kept_), count_}; }

 private:
  void keep_at(FindingKind kind, std::size_t rank, std::size_t offset, std::string message);

  const Schedule& schedule_;
  std::size_t limit_;
  std::vector<Finding> kept_;
  std::size_t count_ = 0;
  mutable std::vector<std::vector<int64_t>> positions_;  // by rank and offset, when first asked for
};

}  // namespace stagecraft
