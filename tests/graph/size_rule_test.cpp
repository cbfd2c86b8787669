#include "stagecraft/graph/size_rule.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stagecraft/base/error.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

using Op = SizeRule::Op;

constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
constexpr int64_t kGreatest = std::numeric_limits<int64_t>::max();

const std::vector<std::string> kRuleNames = {"B", "S"};

SizeRule parse_rule(const std::string& text) {
  TextCursor in(text);
  SizeRule result = parse_size_rule(in, kRuleNames);
  in.expect_end();
  return result;
}

struct RuleCase {
  Op op;
  int64_t left;
  int64_t right;
  int64_t expected;
};

TEST(SizeRule, DividesAsPythonDoes) {
  const std::vector<RuleCase> cases = {
      {Op::kFloorDiv, 7, 2, 3},
      {Op::kFloorDiv, -7, 2, -4},
      {Op::kFloorDiv, 7, -2, -4},
      {Op::kFloorDiv, -7, -2, 3},
      {Op::kFloorDiv, -8, 2, -4},
      {Op::kFloorDiv, 0, -3, 0},
      {Op::kFloorDiv, -1, 5, -1},
      {Op::kFloorDiv, kLeast, 3, -3074457345618258603},
      {Op::kFloorDiv, kLeast, 1, kLeast},
      {Op::kFloorDiv, kGreatest, -1, -kGreatest},
      {Op::kMod, 7, 2, 1},
      {Op::kMod, -7, 2, 1},
      {Op::kMod, 7, -2, -1},
      {Op::kMod, -7, -2, -1},
      {Op::kMod, 7, 3, 1},
      {Op::kMod, -7, 3, 2},
      {Op::kMod, 7, -3, -2},
      {Op::kMod, -6, 3, 0},
      {Op::kMod, 0, -3, 0},
      {Op::kMod, kLeast, 3, 1},
      {Op::kMod, kLeast, -1, 0},
      {Op::kMod, kGreatest, kLeast, -1},
  };
  for (const RuleCase& c : cases) {
    EXPECT_EQ(apply(c.op, c.left, c.right), c.expected) << c.left << " and " << c.right;
  }
  // What makes the two one: a = b * (a // b) + a % b.
  for (int64_t a = -12; a <= 12; ++a) {
    for (int64_t b = -5; b <= 5; ++b) {
      if (b == 0) continue;
      EXPECT_EQ(b * apply(Op::kFloorDiv, a, b) + apply(Op::kMod, a, b), a) << a << " and " << b;
    }
  }
}

TEST(SizeRule, MultipliesComparesAndJoins) {
  const std::vector<RuleCase> cases = {
      {Op::kProduct, -3, 5, -15},
      {Op::kProduct, 0, kLeast, 0},
      {Op::kPower, 2, 10, 1024},
      {Op::kPower, -2, 3, -8},
      {Op::kPower, 7, 0, 1},
      {Op::kPower, 0, 0, 1},
      {Op::kPower, 0, 9, 0},
      {Op::kPower, -2, 63, kLeast},
      {Op::kPower, 1, kGreatest, 1},
      {Op::kPower, -1, kGreatest, -1},
      {Op::kPower, -1, kGreatest - 1, 1},
      {Op::kMin, -3, 2, -3},
      {Op::kMax, -3, 2, 2},
      {Op::kEqual, 4, 4, 1},
      {Op::kEqual, 4, 5, 0},
      {Op::kUnequal, 4, 4, 0},
      {Op::kUnequal, 4, 5, 1},
      {Op::kLess, 4, 5, 1},
      {Op::kLess, 5, 5, 0},
      {Op::kLess, -6, 5, 1},
      {Op::kAtMost, 5, 5, 1},
      {Op::kAtMost, 6, 5, 0},
      {Op::kBoth, 7, -2, 1},
      {Op::kBoth, 7, 0, 0},
      {Op::kEither, 0, -2, 1},
      {Op::kEither, 0, 0, 0},
      {Op::kBitAnd, 12, 10, 8},
      {Op::kBitOr, 12, 10, 14},
      {Op::kBitXor, 12, 10, 6},
      {Op::kBitAnd, -1, 10, 10},
  };
  for (const RuleCase& c : cases) {
    EXPECT_EQ(apply(c.op, c.left, c.right), c.expected)
        << static_cast<int>(c.op) << " of " << c.left << " and " << c.right;
  }
}

TEST(SizeRule, SaysWhenThereIsNoResult) {
  EXPECT_ERROR(apply(Op::kFloorDiv, 5, 0), Error, "a size divides by 0: 5 by 0");
  EXPECT_ERROR(apply(Op::kMod, -5, 0), Error, "a size divides by 0: -5 by 0");
  EXPECT_ERROR(apply(Op::kFloorDiv, kLeast, -1), Error, "a size overflows");
  EXPECT_ERROR(apply(Op::kProduct, kGreatest, 2), Error, "a size overflows");
  EXPECT_ERROR(apply(Op::kProduct, kLeast, -1), Error, "a size overflows");
  EXPECT_ERROR(apply(Op::kPower, 2, 63), Error, "a size overflows");
  EXPECT_ERROR(apply(Op::kPower, 10, kGreatest), Error, "a size overflows");
  EXPECT_ERROR(apply(Op::kPower, 2, -1), Error, "a size cannot be raised to the power of -1");
  EXPECT_ERROR(parse_rule("product(B, S)").at(std::vector<int64_t>{kGreatest, 2}), Error,
               "a size overflows");
  EXPECT_ERROR(parse_rule("mod(4, B*S)").at(std::vector<int64_t>{kGreatest, 2}), Error,
               "a size overflows");
}

TEST(SizeRule, KnowsWhatItFollowsFrom) {
  const SizeRule rule = parse_rule("floor_div(S + 1, 2*B)");
  EXPECT_EQ(rule.sizes(), SizeSet{3});
  EXPECT_EQ(rule.at(std::vector<int64_t>{2, 14}), 3);
  EXPECT_EQ(parse_rule("min(S, 4)").sizes(), SizeSet{2});
  EXPECT_EQ(parse_rule("max(3, 4)").sizes(), SizeSet{0});
}

TEST(SizeRule, TellsTruthsFromCounts) {
  for (const Op op : {Op::kEqual, Op::kUnequal, Op::kLess, Op::kAtMost, Op::kBoth, Op::kEither}) {
    EXPECT_TRUE(is_truth(op)) << static_cast<int>(op);
  }
  for (const Op op : {Op::kProduct, Op::kPower, Op::kFloorDiv, Op::kMod, Op::kMin, Op::kMax,
                      Op::kBitAnd, Op::kBitOr, Op::kBitXor}) {
    EXPECT_FALSE(is_truth(op)) << static_cast<int>(op);
  }
}

TEST(SizeRule, PrintsAndParses) {
  for (const std::string op :
       {"product", "power", "floor_div", "mod", "min", "max", "equal", "unequal", "less", "at_most",
        "both", "either", "bit_and", "bit_or", "bit_xor"}) {
    for (const std::string arguments : {"(S, 2)", "(16*B*S + 4*B - 1, -S)", "(-3, B)", "(0, 0)"}) {
      EXPECT_EQ(to_text(parse_rule(op + arguments), kRuleNames), op + arguments);
    }
  }
  EXPECT_EQ(parse_rule("mod(B, S)"), parse_rule("mod(B,S)"));
  EXPECT_NE(parse_rule("mod(B, S)"), parse_rule("mod(S, B)"));
  EXPECT_NE(parse_rule("mod(B, S)"), parse_rule("min(B, S)"));
}

TEST(SizeRule, RefusesOtherTexts) {
  EXPECT_ERROR(parse_rule("half(S, 2)"), ParseError,
               "line 1, column 1: expected a rule for a size, got 'half'");
  EXPECT_ERROR(parse_rule(""), ParseError, "line 1, column 1: expected a rule for a size, got ''");
  EXPECT_ERROR(parse_rule("mod S"), ParseError, "line 1, column 4: expected '('");
  EXPECT_ERROR(parse_rule("mod(S)"), ParseError, "line 1, column 6: expected ','");
  EXPECT_ERROR(parse_rule("mod(S, 2"), ParseError, "line 1, column 9: expected ')'");
  EXPECT_ERROR(parse_rule("mod(S, 2, 3)"), ParseError, "line 1, column 9: expected ')'");
  EXPECT_ERROR(parse_rule("mod(S, C)"), ParseError,
               "line 1, column 9: expected a number or a size, got 'C'");
  EXPECT_ERROR(parse_rule("mod(min(S, 1), 2)"), ParseError,
               "expected a number or a size, got 'min'");
}

}  // namespace
}  // namespace stagecraft
