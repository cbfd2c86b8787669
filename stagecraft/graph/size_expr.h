#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stagecraft/base/assert.h"
#include "stagecraft/base/text_cursor.h"

namespace stagecraft {

/// A set of sizes: bit i is size number i.
using SizeSet = uint64_t;

/// A number that depends on the sizes of a model's inputs: a sum of products of sizes. Each size
/// appears at most once in a product.
///
///   16*B*S + 4*B - 1
///
/// Sizes are numbered. The graph that the expression belongs to has their names.
class SizeExpr {
 public:
  /// A product of sizes with a factor.
  struct Term {
    SizeSet sizes = 0;
    int64_t factor = 0;

    friend bool operator==(const Term&, const Term&) = default;
  };
  /// A SizeSet has 64 bits, and the set of all sizes is computed as (1 << number of sizes) - 1.
  static constexpr int kMaxSizes = 62;

  SizeExpr() = default;
  /// A plain number.
  explicit SizeExpr(int64_t number);
  /// Size number `size`. REQUIRES 0 <= size < kMaxSizes.
  static SizeExpr of_size(int size);
  /// The sum of the terms, in any order. A product may appear several times.
  static SizeExpr of_terms(std::span<const Term> terms);
  /// The expression with the given values at the corners of a box: `corners[k]` is its value where
  /// size i is `low[i] + 1` if bit i of k is set, otherwise `low[i]`. There is exactly one, and its
  /// factors are integers. REQUIRES corners.size() == 2^low.size().
  static SizeExpr through(std::span<const int64_t> low, std::span<const int64_t> corners);

  bool is_number() const;
  /// REQUIRES is_number().
  int64_t number() const {
    SC_ASSERT(is_number());
    return terms_.empty() ? 0 : terms_.front().factor;
  }
  /// The sizes in the expression.
  SizeSet sizes() const;
  /// Ascending in `sizes`, no factor is 0.
  std::span<const Term> terms() const { return terms_; }

  /// The value at these sizes. Throws Error if it overflows. REQUIRES a value for each size of the
  /// expression.
  int64_t at(std::span<const int64_t> sizes) const;

  friend bool operator==(const SizeExpr&, const SizeExpr&) = default;

 private:
  std::vector<Term> terms_;
};

std::string to_text(const SizeExpr& expr, std::span<const std::string> names);

/// The inverse of to_text. Integers are expressions, too. Throws ParseError.
SizeExpr parse_size_expr(TextCursor& in, std::span<const std::string> names);

}  // namespace stagecraft
