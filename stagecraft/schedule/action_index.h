#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// The place of each action that has a microbatch, by type, stage and microbatch. Places are
/// numbered through all lists, rank after rank. The schedule must outlive it and have at most 2^32
/// - 2 actions (ArgumentError).
class ActionIndex {
 public:
  static constexpr uint32_t kNowhere = UINT32_MAX;

  explicit ActionIndex(const Schedule& schedule);

  /// The first place of a rank.
  uint32_t first_place(std::size_t rank) const { return first_[rank]; }

  /// Records a place. Returns false, and keeps the earlier place, if the action was recorded
  /// before.
  bool add(Action action, uint32_t place) {
    uint32_t& entry = get_row(action.stage(), action.microbatch())
                          .places[static_cast<std::size_t>(action.type())];
    if (entry != kNowhere) return false;
    entry = place;
    return true;
  }
  /// Records the places of all actions that have a microbatch. Returns false, before all were
  /// added, if an action is not on the rank of its stage or occurs twice.
  bool add_all(const Schedule& schedule);
  /// The place of that action, or kNowhere.
  uint32_t find(ActionType type, StageId stage, MicrobatchId microbatch) const {
    const Row* row = find_row(stage, microbatch);
    return row == nullptr ? kNowhere : row->places[static_cast<std::size_t>(type)];
  }
  /// The place of the action that makes the gradients of the stage's inputs: its B, otherwise its
  /// I.
  uint32_t find_gradient_maker(StageId stage, MicrobatchId microbatch) const {
    const uint32_t place = find(ActionType::kBackward, stage, microbatch);
    return place != kNowhere ? place : find(ActionType::kBackwardInput, stage, microbatch);
  }

 private:
  struct Row {
    Row() {
      for (uint32_t& place : places) place = kNowhere;
    }
    uint32_t places[kMicrobatchTypes];
  };

  static uint64_t key(StageId stage, MicrobatchId microbatch) {
    return (static_cast<uint64_t>(stage.value()) << 32U) |
           static_cast<uint32_t>(microbatch.value());
  }
  const Row* find_row(StageId stage, MicrobatchId microbatch) const {
    if (is_dense_) return &rows_[stage.position() * columns_ + microbatch.position()];
    const auto found = row_of_.find(key(stage, microbatch));
    return found == row_of_.end() ? nullptr : &rows_[found->second];
  }
  Row& get_row(StageId stage, MicrobatchId microbatch) {
    if (is_dense_) return rows_[stage.position() * columns_ + microbatch.position()];
    const auto [found, is_new] = row_of_.try_emplace(key(stage, microbatch), rows_.size());
    if (is_new) rows_.emplace_back();
    return rows_[found->second];
  }

  std::vector<uint32_t> first_;
  // A row for each stage and microbatch; or, where most rows would be empty because a text can name
  // any microbatch, a row for each pair that occurs.
  bool is_dense_;
  std::size_t columns_;
  std::vector<Row> rows_;
  std::unordered_map<uint64_t, std::size_t> row_of_;
};

}  // namespace stagecraft
