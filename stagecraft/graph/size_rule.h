#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "stagecraft/base/text_cursor.h"
#include "stagecraft/graph/size_expr.h"

namespace stagecraft {

/// A number that is computed from sizes and that a SizeExpr cannot express: `floor_div(S + 1, 2)`.
/// Comparisons return 1 for true and 0 for false.
struct SizeRule {
  enum class Op : uint8_t {
    kProduct,
    kPower,     ///< of a number that is not negative
    kFloorDiv,  ///< rounded down
    kMod,       ///< with the sign of the divisor
    kMin,
    kMax,
    kEqual,
    kUnequal,
    kLess,
    kAtMost,
    kBoth,    ///< 1 if neither number is 0
    kEither,  ///< 0 if both numbers are 0
    kBitAnd,
    kBitOr,
    kBitXor,
  };

  Op op = Op::kProduct;
  SizeExpr left;
  SizeExpr right;

  SizeSet sizes() const { return left.sizes() | right.sizes(); }
  /// Throws Error if the result overflows, and for a division by 0.
  int64_t at(std::span<const int64_t> sizes) const;

  friend bool operator==(const SizeRule&, const SizeRule&) = default;
};

/// Whether the result is a truth value.
inline bool is_truth(SizeRule::Op op) {
  return op >= SizeRule::Op::kEqual && op <= SizeRule::Op::kEither;
}

/// The result of an operation on two numbers. Throws as SizeRule::at does.
int64_t apply(SizeRule::Op op, int64_t left, int64_t right);

std::string to_text(const SizeRule& rule, std::span<const std::string> names);

/// The inverse. Throws ParseError.
SizeRule parse_size_rule(TextCursor& in, std::span<const std::string> names);

}  // namespace stagecraft

/// \enum stagecraft::SizeRule::Op
/// The operation of a rule on its two numbers.
