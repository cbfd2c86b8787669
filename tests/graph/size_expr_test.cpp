#include "stagecraft/graph/size_expr.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stagecraft/base/error.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

const std::vector<std::string> kExprNames = {"B", "S"};

SizeExpr parse_expr(const std::string& text) {
  TextCursor in(text);
  SizeExpr result = parse_size_expr(in, kExprNames);
  in.expect_end();
  return result;
}

TEST(SizeExpr, PrintsAndParses) {
  for (const std::string text :
       {"0", "-3", "B", "-B", "16*B", "S - 1", "16*B*S + 4*B - 1", "-2*B*S + S",
        "-9223372036854775808", "B - 9223372036854775808", "-9223372036854775808*B"}) {
    EXPECT_EQ(to_text(parse_expr(text), kExprNames), text);
  }
  EXPECT_EQ(to_text(parse_expr("1 + B*2*3 - 4*B + S*B"), kExprNames), "B*S + 2*B + 1");
  EXPECT_EQ(to_text(parse_expr("B - B"), kExprNames), "0");
}

TEST(SizeExpr, RefusesOtherTexts) {
  EXPECT_ERROR(parse_expr("C"), ParseError, "expected a number or a size, got 'C'");
  EXPECT_ERROR(parse_expr("B*B"), ParseError, "B appears twice in a product");
  EXPECT_ERROR(parse_expr("3*"), ParseError, "expected a number or a size");
  EXPECT_ERROR(parse_expr("4611686018427387904*2*B"), ParseError,
               "line 1, column 1: a size overflows");
  EXPECT_ERROR(parse_expr("9223372036854775807*B + B"), ParseError, "a size overflows");
}

TEST(SizeExpr, GoesThroughTheCornersOfABox) {
  for (const std::string text : {"7", "3*B", "B + S", "2*B*S - 5*S + 4", "-B*S + 11"}) {
    const SizeExpr expr = parse_expr(text);
    const std::vector<int64_t> low = {4, 9};
    std::vector<int64_t> corners;
    for (std::size_t k = 0; k < 4; ++k) {
      corners.push_back(expr.at(
          std::vector<int64_t>{4 + static_cast<int64_t>(k & 1), 9 + static_cast<int64_t>(k >> 1)}));
    }
    EXPECT_EQ(SizeExpr::through(low, corners), expr) << text;
  }
}

TEST(SizeExpr, SaysWhenAResultDoesNotFit) {
  const std::vector<int64_t> huge = {std::numeric_limits<int64_t>::max() / 2, 5};
  EXPECT_ERROR(parse_expr("B*S").at(huge), Error, "a size overflows");
  EXPECT_EQ(parse_expr("2*B + 1").at(huge), std::numeric_limits<int64_t>::max());
}

}  // namespace
}  // namespace stagecraft
