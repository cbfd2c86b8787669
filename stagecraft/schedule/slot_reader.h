#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// Reads the slots of a schedule's text in order. Action text, lists and CSV share the grammar:
///
///   slot := "" | action | "(" action { ";" action } ")OVERLAP_F_B"
class SlotReader {
 public:
  explicit SlotReader(std::string_view text) : text_(text) {}

  bool at_end() const { return position_ == text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[position_]; }
  /// Consumes `c` and returns true if it comes next. Otherwise does nothing.
  bool accept(char c);
  /// Consumes "\n" or "\r\n" if it comes next.
  bool accept_line_end();
  /// Consumes blanks and tabs.
  void skip_blanks();

  /// Consumes one action that is not an overlap. ParseError if none comes next.
  Action read_action();
  /// Consumes an action or an overlap and appends it to `list`.
  void read_slot(ActionList& list);
  /// True where a slot starts: at a digit or '('.
  bool at_slot() const;

  /// ParseError: "expected <expected>, got <what comes next>".
  [[noreturn]] void fail_expected(std::string_view expected) const;

 private:
  int32_t read_number(std::string_view what, int32_t limit);
  [[noreturn]] void fail(const std::string& message, std::size_t position) const;

  std::string_view text_;
  std::size_t position_ = 0;
};

}  // namespace stagecraft
