#include "stagecraft/base/text_cursor.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

namespace stagecraft {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || is_digit(c);
}

int hex_value(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

void TextCursor::skip_space() {
  while (!at_end() &&
         std::string_view(" \t\r\n").find(text_[position_]) != std::string_view::npos) {
    ++position_;
  }
}

bool TextCursor::accept(std::string_view token) {
  if (!text_.substr(position_).starts_with(token)) return false;
  position_ += token.size();
  return true;
}

void TextCursor::expect(std::string_view token) {
  if (!accept(token)) fail(fmt::format("expected '{}', got {}", token, describe_next()));
}

void TextCursor::expect_end() const {
  if (!at_end()) fail(fmt::format("expected the end of the text, got {}", describe_next()));
}

std::string_view TextCursor::read_word() {
  std::size_t end = position_;
  if (end < text_.size() && is_digit(text_[end])) return {};
  while (end < text_.size() && is_word(text_[end])) ++end;
  const std::string_view word = text_.substr(position_, end - position_);
  position_ = end;
  return word;
}

std::string_view TextCursor::read_all_of(std::string_view characters) {
  const std::size_t end = std::min(text_.find_first_not_of(characters, position_), text_.size());
  const std::string_view found = text_.substr(position_, end - position_);
  position_ = end;
  return found;
}

int64_t TextCursor::read_integer() {
  int64_t value = 0;
  const char* begin = text_.data() + position_;
  const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
  if (error == std::errc::result_out_of_range) fail("the integer does not fit into 64 bits");
  if (error != std::errc()) fail(fmt::format("expected an integer, got {}", describe_next()));
  position_ += static_cast<std::size_t>(end - begin);
  return value;
}

std::string TextCursor::read_quoted() {
  expect("\"");
  std::string out;
  while (true) {
    if (at_end()) fail("expected a closing '\"', got the end of the text");
    const char c = text_[position_];
    if (c == '"') {
      ++position_;
      return out;
    }
    if (c != '\\') {
      out += c;
      ++position_;
      continue;
    }
    const std::string_view escape = text_.substr(position_, 4);
    if (escape.starts_with("\\\"") || escape.starts_with("\\\\")) {
      out += escape[1];
      position_ += 2;
    } else if (escape.starts_with("\\n")) {
      out += '\n';
      position_ += 2;
    } else if (escape.size() == 4 && escape[1] == 'x' && hex_value(escape[2]) >= 0 &&
               hex_value(escape[3]) >= 0) {
      out += static_cast<char>(hex_value(escape[2]) * 16 + hex_value(escape[3]));
      position_ += 4;
    } else {
      fail("unknown escape; expected \\\", \\\\, \\n or \\xhh");
    }
  }
}

void TextCursor::fail(const std::string& message) const {
  throw_parse_error(message, text_, position_);
}

void throw_parse_error(const std::string& message, std::string_view text, std::size_t position) {
  const std::string_view before = text.substr(0, position);
  const auto line = static_cast<std::size_t>(std::count(before.begin(), before.end(), '\n')) + 1;
  const std::size_t line_start = line == 1 ? 0 : before.rfind('\n') + 1;
  throw ParseError(message, line, position - line_start + 1);
}

std::string TextCursor::describe_next() const {
  if (at_end()) return "the end of the text";
  const char c = text_[position_];
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 || byte >= 0x7f ? fmt::format("byte 0x{:02x}", byte) : fmt::format("'{}'", c);
}

std::string quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace stagecraft
