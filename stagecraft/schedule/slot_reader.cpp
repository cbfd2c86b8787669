#include "stagecraft/schedule/slot_reader.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "stagecraft/base/error.h"
#include "stagecraft/base/text_cursor.h"

namespace stagecraft {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_word(char c) {
  return (c >= 'A' && c <= 'Z') || c == '_';
}

// Finds the common types without a search.
std::optional<ActionType> type_of(std::string_view word) {
  if (word.size() == 1) {
    switch (word[0]) {
      case 'F':
        return ActionType::kForward;
      case 'B':
        return ActionType::kBackward;
      case 'I':
        return ActionType::kBackwardInput;
      case 'W':
        return ActionType::kBackwardWeight;
      default:
        return std::nullopt;
    }
  }
  return find_action_type(word);
}

}  // namespace

bool SlotReader::accept(char c) {
  if (at_end() || text_[position_] != c) return false;
  ++position_;
  return true;
}

bool SlotReader::accept_line_end() {
  if (accept('\n')) return true;
  if (!text_.substr(position_).starts_with("\r\n")) return false;
  position_ += 2;
  return true;
}

void SlotReader::skip_blanks() {
  while (peek() == ' ' || peek() == '\t') ++position_;
}

bool SlotReader::at_slot() const {
  return peek() == '(' || is_digit(peek());
}

int32_t SlotReader::read_number(std::string_view what, int32_t limit) {
  const std::size_t begin = position_;
  int64_t value = 0;
  while (!at_end() && is_digit(text_[position_])) {
    value = std::min<int64_t>(value * 10 + (text_[position_] - '0'), INT64_MAX / 100);
    ++position_;
  }
  if (position_ == begin) fail_expected(fmt::format("a {} number", what));
  // A number has one spelling, so that printing gives the text that was read.
  if (text_[begin] == '0' && position_ - begin > 1) {
    fail(fmt::format("a {} number has no leading zero", what), begin);
  }
  if (value > limit) fail(fmt::format("a {} number is at most {}", what, limit), begin);
  return static_cast<int32_t>(value);
}

Action SlotReader::read_action() {
  const StageId stage(read_number("stage", Action::kMaxStage));
  const std::size_t begin = position_;
  while (!at_end() && is_word(text_[position_])) ++position_;
  const std::string_view word = text_.substr(begin, position_ - begin);
  const std::optional<ActionType> type = type_of(word);
  if (!type || *type == ActionType::kOverlap) {
    const std::string_view known =
        "F, I, W, B, SEND_F, RECV_F, SEND_B, RECV_B, WAIT_SEND_F, WAIT_SEND_B, UNSHARD, RESHARD, "
        "REDUCE_GRAD or WAIT_REDUCE_GRAD";
    position_ = begin;
    if (word.empty()) fail_expected(known);
    fail(fmt::format("expected {} after a stage number, got {}", known, quote(word)), begin);
  }
  if (!has_microbatch(*type)) {
    if (is_digit(peek())) fail(fmt::format("{} has no microbatch", word), position_);
    return {stage, *type};
  }
  return {stage, *type, MicrobatchId(read_number("microbatch", Action::kMaxMicrobatch))};
}

void SlotReader::read_slot(ActionList& list) {
  if (!accept('(')) {
    list.push_back(read_action());
    return;
  }
  const std::size_t first = list.size();
  const std::size_t begin = position_ - 1;
  list.push_back(Action::overlap(0));
  int32_t parts = 0;
  do {
    const std::size_t at = position_;
    const Action part = read_action();
    if (!is_compute(part.type())) {
      fail(fmt::format("the parts of an overlap are F, I, W or B, got {}", to_string(part)), at);
    }
    list.push_back(part);
    ++parts;
  } while (accept(';'));
  if (!accept(')')) fail_expected("';' or ')'");
  const std::string_view word = to_string(ActionType::kOverlap);
  if (!text_.substr(position_).starts_with(word)) fail_expected(word);
  position_ += word.size();
  if (parts < 2) fail("an overlap has at least 2 parts", begin);
  list[first] = Action::overlap(parts);
}

void SlotReader::fail_expected(std::string_view expected) const {
  TextCursor next(text_.substr(position_));
  fail(fmt::format("expected {}, got {}", expected, next.describe_next()), position_);
}

void SlotReader::fail(const std::string& message, std::size_t position) const {
  throw_parse_error(message, text_, position);
}

}  // namespace stagecraft
