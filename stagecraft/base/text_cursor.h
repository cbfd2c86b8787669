#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "stagecraft/base/error.h"

namespace stagecraft {

/// Reads a text from left to right and tracks line and column, for the small parsers of this
/// library. The text must outlive the cursor. Every failure is a ParseError at the place of the
/// failure.
///
///   TextCursor in("TensorChunkSpec(0)");
///   in.expect("TensorChunkSpec(");
///   int64_t dim = in.read_integer();
///   in.expect(")");
///   in.expect_end();
class TextCursor {
 public:
  explicit TextCursor(std::string_view text) : text_(text) {}

  bool at_end() const { return position_ == text_.size(); }
  /// The next character, or '\0' at the end.
  char peek() const { return at_end() ? '\0' : text_[position_]; }

  /// Skips spaces, tabs and line ends.
  void skip_space();
  /// Consumes `token` and returns true if it comes next. Otherwise does nothing.
  bool accept(std::string_view token);
  /// Consumes `token`. If it does not come next, fails with a message that names it and what came.
  void expect(std::string_view token);
  void expect_end() const;

  /// Consumes a word of letters, digits and '_' that does not begin with a digit; empty if none
  /// comes next.
  std::string_view read_word();
  /// Consumes characters for as long as they are among `characters`.
  std::string_view read_all_of(std::string_view characters);
  /// A decimal integer with an optional '-'. Fails without one, and on overflow.
  int64_t read_integer();
  /// A text in double quotes with the escapes that `quote` makes.
  std::string read_quoted();

  /// Fails at the current place: "line 1, column 4: <message>".
  [[noreturn]] void fail(const std::string& message) const;
  /// What comes next, for messages: a quoted character or "the end of the text".
  std::string describe_next() const;

 private:
  std::string_view text_;
  std::size_t position_ = 0;
};

/// Throws a ParseError with the line and column of the byte at `position`.
[[noreturn]] void throw_parse_error(const std::string& message, std::string_view text,
                                    std::size_t position);

/// `text` in double quotes, with `"`, `\`, line ends and control characters escaped.
std::string quote(std::string_view text);

}  // namespace stagecraft
