#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>

#include "stagecraft/schedule/action.h"

namespace stagecraft {

/// One entry of a rank's list as a reader sees it (one field of a CSV line): idle, one action, or
/// an overlap with its parts. A view; the list must outlive it.
class Slot {
 public:
  /// `actions`: one action, or an overlap and its parts. `position`: the number of the slot in its
  /// list, from 0. `offset`: where it starts among the list's actions.
  Slot(std::span<const Action> actions, int64_t position, std::size_t offset)
      : actions_(actions), position_(position), offset_(offset) {}

  bool is_idle() const { return actions_.front().is_idle(); }
  bool is_overlap() const { return actions_.front().is_overlap(); }
  /// The actions that the slot executes: the parts of an overlap, the action itself, or none if it
  /// is idle.
  std::span<const Action> parts() const {
    return actions_.subspan(is_overlap() || is_idle() ? 1 : 0);
  }
  /// The entries of the list: an action, or an overlap and its parts.
  std::span<const Action> actions() const { return actions_; }
  int64_t position() const { return position_; }
  std::size_t offset() const { return offset_; }
  /// Where parts() starts among the list's actions.
  std::size_t parts_offset() const { return offset_ + (is_overlap() || is_idle() ? 1 : 0); }

 private:
  std::span<const Action> actions_;
  int64_t position_;
  std::size_t offset_;
};

/// "2F0", "(0F7;7B3)OVERLAP_F_B", or nothing for idle.
std::string to_string(const Slot& slot);
/// Appends the same text.
void append_text(std::string& text, const Slot& slot);

/// The slots of a well-formed list:
///
///   for (const Slot& slot : SlotRange(schedule.actions(rank))) ...
class SlotRange {
 public:
  /// Goes from slot to slot.
  class iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = Slot;
    using difference_type = std::ptrdiff_t;
    using pointer = const Slot*;
    using reference = Slot;

    iterator() = default;
    iterator(std::span<const Action> list, std::size_t offset) : list_(list), offset_(offset) {}

    Slot operator*() const { return {list_.subspan(offset_, length()), position_, offset_}; }
    iterator& operator++() {
      offset_ += length();
      ++position_;
      return *this;
    }
    iterator operator++(int) {
      iterator before = *this;
      ++*this;
      return before;
    }
    friend bool operator==(const iterator& a, const iterator& b) { return a.offset_ == b.offset_; }

   private:
    std::size_t length() const { return 1 + static_cast<std::size_t>(list_[offset_].num_parts()); }

    std::span<const Action> list_;
    std::size_t offset_ = 0;
    int64_t position_ = 0;
  };

  explicit SlotRange(std::span<const Action> list) : list_(list) {}

  iterator begin() const { return {list_, 0}; }
  iterator end() const { return {list_, list_.size()}; }

 private:
  std::span<const Action> list_;
};

/// The slot that holds the action at `offset` of the list.
Slot slot_at(std::span<const Action> list, std::size_t offset);

}  // namespace stagecraft
