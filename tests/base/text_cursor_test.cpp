#include "stagecraft/base/text_cursor.h"

#include <string>

#include <gtest/gtest.h>

namespace stagecraft {
namespace {

template <typename F>
std::string failure(F&& run) {
  try {
    run();
  } catch (const ParseError& error) {
    return error.what();
  }
  return "did not fail";
}

TEST(TextCursor, ReadsWordsIntegersAndTokens) {
  TextCursor in("  Spec_2(-17) ");
  in.skip_space();
  EXPECT_EQ(in.read_word(), "Spec_2");
  in.expect("(");
  EXPECT_FALSE(in.accept("x"));
  EXPECT_EQ(in.read_integer(), -17);
  EXPECT_TRUE(in.accept(")"));
  EXPECT_EQ(in.read_word(), "");
  in.skip_space();
  in.expect_end();
}

TEST(TextCursor, FailuresNameLineAndColumn) {
  TextCursor in("ab\ncd?");
  in.expect("ab\ncd");
  EXPECT_EQ(failure([&] { in.expect(")"); }), "line 2, column 3: expected ')', got '?'");
  EXPECT_EQ(failure([&] { in.expect_end(); }),
            "line 2, column 3: expected the end of the text, got '?'");
  EXPECT_EQ(failure([&] { in.read_integer(); }), "line 2, column 3: expected an integer, got '?'");
  in.expect("?");
  EXPECT_EQ(failure([&] { in.expect("x"); }),
            "line 2, column 4: expected 'x', got the end of the text");
}

TEST(TextCursor, IntegersThatDoNotFitFail) {
  TextCursor in("99999999999999999999");
  EXPECT_EQ(failure([&] { in.read_integer(); }),
            "line 1, column 1: the integer does not fit into 64 bits");
}

TEST(TextCursor, QuoteAndReadQuotedAreInverseForEveryByte) {
  std::string all;
  for (int c = 0; c < 256; ++c) all += static_cast<char>(c);
  const std::string quoted = quote(all);
  TextCursor in(quoted);
  EXPECT_EQ(in.read_quoted(), all);
  in.expect_end();
  EXPECT_EQ(quote("a\"b\\c\nd"), R"("a\"b\\c\nd")");
}

TEST(TextCursor, BadQuotesFail) {
  EXPECT_EQ(failure([] { TextCursor("\"abc").read_quoted(); }),
            "line 1, column 5: expected a closing '\"', got the end of the text");
  EXPECT_EQ(failure([] { TextCursor("\"a\\q\"").read_quoted(); }),
            "line 1, column 3: unknown escape; expected \\\", \\\\, \\n or \\xhh");
  EXPECT_EQ(failure([] { TextCursor("\"\\x1").read_quoted(); }),
            "line 1, column 2: unknown escape; expected \\\", \\\\, \\n or \\xhh");
}

}  // namespace
}  // namespace stagecraft
