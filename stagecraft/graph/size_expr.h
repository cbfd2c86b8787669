#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stagecraft/base/text_cursor.h"

namespace stagecraft {

/// A set of sizes: bit i stands for size number i.
using SizeSet = uint64_t;

/// A number that follows the sizes of a model's inputs: a sum of products of sizes, each size at
/// most once in a product.
///
///   16*B*S + 4*B - 1
///
/// Sizes are numbered; their names stand in the graph that the expression belongs to.
class SizeExpr {
 public:
  /// A product of sizes with a factor.
  struct Term {
    SizeSet sizes = 0;
    int64_t factor = 0;

    friend bool operator==(const Term&, const Term&) = default;
  };
  static constexpr int kMaxSizes = 62;

  SizeExpr() = default;
  /// A plain number.
  explicit SizeExpr(int64_t number);
  /// Size number `size`. Requires size < kMaxSizes.
  static SizeExpr of_size(int size);
  /// The sum of the terms, in any order; a product may come several times.
  static SizeExpr of_terms(std::span<const Term> terms);
  /// The one that has the given values at the corners of a box: `corners[k]` is its value where
  /// size i is `low[i] + 1` if bit i of k is set, otherwise `low[i]`. There is exactly one, and its
  /// factors are whole numbers. Requires corners.size() == 2^low.size().
  static SizeExpr through(std::span<const int64_t> low, std::span<const int64_t> corners);

  bool is_number() const;
  /// Requires is_number().
  int64_t number() const { return terms_.empty() ? 0 : terms_.front().factor; }
  /// Which sizes it needs.
  SizeSet sizes() const;
  /// Ascending in `sizes`, no factor is 0.
  std::span<const Term> terms() const { return terms_; }

  /// Throws Error when the result does not fit. Requires a value for each of its sizes.
  int64_t at(std::span<const int64_t> sizes) const;

  friend bool operator==(const SizeExpr&, const SizeExpr&) = default;

 private:
  std::vector<Term> terms_;
};

std::string to_text(const SizeExpr& expr, std::span<const std::string> names);

/// The inverse; whole numbers are expressions too. Throws ParseError.
SizeExpr parse_size_expr(TextCursor& in, std::span<const std::string> names);

}  // namespace stagecraft
