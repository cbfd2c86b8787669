#include "stagecraft/graph/size_rule.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>

#include <fmt/format.h>

#include "stagecraft/base/check.h"

namespace stagecraft {

namespace {

using Op = SizeRule::Op;

struct OpName {
  Op op;
  std::string_view name;
};
// The words are part of the text form of graphs, which archives contain.
constexpr std::array<OpName, 15> kOps = {{
    {Op::kProduct, "product"},
    {Op::kPower, "power"},
    {Op::kFloorDiv, "floor_div"},
    {Op::kMod, "mod"},
    {Op::kMin, "min"},
    {Op::kMax, "max"},
    {Op::kEqual, "equal"},
    {Op::kUnequal, "unequal"},
    {Op::kLess, "less"},
    {Op::kAtMost, "at_most"},
    {Op::kBoth, "both"},
    {Op::kEither, "either"},
    {Op::kBitAnd, "bit_and"},
    {Op::kBitOr, "bit_or"},
    {Op::kBitXor, "bit_xor"},
}};

// Rounds down, as Python and torch.export do. C++ rounds towards 0.
int64_t floor_div(int64_t left, int64_t right) {
  if (right == 0) throw Error(fmt::format("a size divides by 0: {} by {}", left, right));
  // The only quotient that does not fit. In C++ this division is undefined.
  if (right == -1 && left == std::numeric_limits<int64_t>::min()) {
    throw Error(fmt::format("a size overflows: {} by {}", left, right));
  }
  const int64_t quotient = left / right;
  return left % right != 0 && (left < 0) != (right < 0) ? quotient - 1 : quotient;
}

int64_t mod(int64_t left, int64_t right) {
  if (right == 0) throw Error(fmt::format("a size divides by 0: {} by {}", left, right));
  if (right == -1) return 0;  // the smallest int64 divided by -1 overflows
  const int64_t rest = left % right;
  // The sign of the divisor, as in Python. In C++ it is that of the dividend.
  return rest != 0 && (rest < 0) != (right < 0) ? rest + right : rest;
}

int64_t product(int64_t left, int64_t right) {
  int64_t result = 0;
  if (__builtin_mul_overflow(left, right, &result)) {
    throw Error(fmt::format("a size overflows: {} times {}", left, right));
  }
  return result;
}

int64_t power(int64_t base, int64_t exponent) {
  if (exponent < 0)
    throw Error(fmt::format("a size cannot be raised to the power of {}", exponent));
  // Powers of 0, 1 and -1 never overflow, so a large exponent would take as many turns below. For
  // any other base the loop ends with an error after at most 63 turns.
  if (base == 0 || base == 1) return exponent == 0 ? 1 : base;
  if (base == -1) return exponent % 2 == 0 ? 1 : -1;
  int64_t result = 1;
  for (int64_t i = 0; i < exponent; ++i) result = product(result, base);
  return result;
}

}  // namespace

int64_t apply(SizeRule::Op op, int64_t left, int64_t right) {
  switch (op) {
    case Op::kProduct:
      return product(left, right);
    case Op::kPower:
      return power(left, right);
    case Op::kFloorDiv:
      return floor_div(left, right);
    case Op::kMod:
      return mod(left, right);
    case Op::kMin:
      return std::min(left, right);
    case Op::kMax:
      return std::max(left, right);
    case Op::kEqual:
      return left == right ? 1 : 0;
    case Op::kUnequal:
      return left != right ? 1 : 0;
    case Op::kLess:
      return left < right ? 1 : 0;
    case Op::kAtMost:
      return left <= right ? 1 : 0;
    case Op::kBoth:
      return left != 0 && right != 0 ? 1 : 0;
    case Op::kEither:
      return left != 0 || right != 0 ? 1 : 0;
    case Op::kBitAnd:
      return left & right;
    case Op::kBitOr:
      return left | right;
    case Op::kBitXor:
      return left ^ right;
  }
  return 0;
}

int64_t SizeRule::at(std::span<const int64_t> sizes) const {
  return apply(op, left.at(sizes), right.at(sizes));
}

std::string to_text(const SizeRule& rule, std::span<const std::string> names) {
  const auto* found = std::ranges::find(kOps, rule.op, &OpName::op);
  return fmt::format("{}({}, {})", found->name, to_text(rule.left, names),
                     to_text(rule.right, names));
}

SizeRule parse_size_rule(TextCursor& in, std::span<const std::string> names) {
  const TextCursor start = in;
  const std::string_view word = in.read_word();
  const auto* found = std::ranges::find(kOps, word, &OpName::name);
  if (found == kOps.end()) start.fail(fmt::format("expected a rule for a size, got '{}'", word));
  SizeRule rule;
  rule.op = found->op;
  in.expect("(");
  rule.left = parse_size_expr(in, names);
  in.expect(",");
  rule.right = parse_size_expr(in, names);
  in.expect(")");
  return rule;
}

}  // namespace stagecraft
