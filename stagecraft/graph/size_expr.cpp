#include "stagecraft/graph/size_expr.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <limits>
#include <string_view>

#include <fmt/format.h>

#include "stagecraft/base/assert.h"
#include "stagecraft/base/check.h"

namespace stagecraft {

namespace {

// Numbers come from files and from callers, so every step is checked. An overflow would be
// undefined behaviour, or a shape that happens to fit.
int64_t multiply(int64_t a, int64_t b) {
  int64_t result = 0;
  require<Error>(!__builtin_mul_overflow(a, b, &result), "a size overflows: {} times {}", a, b);
  return result;
}

int64_t add(int64_t a, int64_t b) {
  int64_t result = 0;
  require<Error>(!__builtin_add_overflow(a, b, &result), "a size overflows: {} plus {}", a, b);
  return result;
}

int64_t product_of(SizeSet bits, std::span<const int64_t> sizes) {
  SC_ASSERT(static_cast<std::size_t>(std::bit_width(bits)) <= sizes.size());
  int64_t product = 1;
  for (SizeSet left = bits; left != 0; left &= left - 1) {
    product = multiply(product, sizes[static_cast<std::size_t>(std::countr_zero(left))]);
  }
  return product;
}

}  // namespace

SizeExpr::SizeExpr(int64_t number) {
  if (number != 0) terms_.push_back({0, number});
}

SizeExpr SizeExpr::of_size(int size) {
  SC_ASSERT(size >= 0 && size < kMaxSizes);
  SizeExpr result;
  result.terms_.push_back({SizeSet{1} << size, 1});
  return result;
}

SizeExpr SizeExpr::of_terms(std::span<const Term> terms) {
  SizeExpr result;
  result.terms_.assign(terms.begin(), terms.end());
  // One form for each expression, so that equal expressions have equal terms: == compares terms.
  std::ranges::sort(result.terms_, {}, &Term::sizes);
  std::size_t kept = 0;
  for (const Term& term : result.terms_) {
    if (kept > 0 && result.terms_[kept - 1].sizes == term.sizes) {
      Term& same = result.terms_[kept - 1];
      same.factor = add(same.factor, term.factor);
    } else {
      result.terms_[kept++] = term;
    }
  }
  result.terms_.resize(kept);
  // After the sum: terms may cancel each other only when all are added.
  std::erase_if(result.terms_, [](const Term& term) { return term.factor == 0; });
  return result;
}

// Computed in two steps. First the factors in the distances d_i = size_i - low_i, which are 0 or 1
// at the corners: the factor of a product of distances is an alternating sum over the corners below
// it. Then (size_i - low_i) is multiplied out, which gives the factors in the sizes themselves.
// Both steps are sums over subsets, done for one size after the other.
SizeExpr SizeExpr::through(std::span<const int64_t> low, std::span<const int64_t> corners) {
  SC_ASSERT(corners.size() == std::size_t{1} << low.size());
  std::vector<int64_t> factors(corners.begin(), corners.end());
  const std::size_t count = factors.size();
  for (std::size_t i = 0; i < low.size(); ++i) {
    for (std::size_t k = 0; k < count; ++k) {
      if ((k >> i & 1) != 0) factors[k] = add(factors[k], -factors[k ^ (std::size_t{1} << i)]);
    }
  }
  for (std::size_t i = 0; i < low.size(); ++i) {
    for (std::size_t k = 0; k < count; ++k) {
      if ((k >> i & 1) != 0) {
        int64_t& below = factors[k ^ (std::size_t{1} << i)];
        below = add(below, -multiply(low[i], factors[k]));
      }
    }
  }
  std::vector<Term> terms;
  for (std::size_t k = 0; k < count; ++k) terms.push_back({static_cast<SizeSet>(k), factors[k]});
  return of_terms(terms);
}

bool SizeExpr::is_number() const {
  return terms_.empty() || (terms_.size() == 1 && terms_.front().sizes == 0);
}

SizeSet SizeExpr::sizes() const {
  SizeSet result = 0;
  for (const Term& term : terms_) result |= term.sizes;
  return result;
}

int64_t SizeExpr::at(std::span<const int64_t> sizes) const {
  int64_t sum = 0;
  for (const Term& term : terms_) {
    sum = add(sum, multiply(term.factor, product_of(term.sizes, sizes)));
  }
  return sum;
}

std::string to_text(const SizeExpr& expr, std::span<const std::string> names) {
  if (expr.terms().empty()) return "0";
  std::string text;
  for (std::size_t i = expr.terms().size(); i-- > 0;) {
    const SizeExpr::Term& term = expr.terms()[i];
    std::string product;
    for (SizeSet left = term.sizes; left != 0; left &= left - 1) {
      if (!product.empty()) product += "*";
      product += names[static_cast<std::size_t>(std::countr_zero(left))];
    }
    const bool is_negative = term.factor < 0;
    std::string factor = fmt::format("{}", term.factor);
    if (is_negative) factor.erase(0, 1);
    if (!text.empty()) {
      text += is_negative ? " - " : " + ";
    } else if (is_negative) {
      text += "-";
    }
    if (product.empty()) {
      text += factor;
    } else if (factor == "1") {
      text += product;
    } else {
      text += fmt::format("{}*{}", factor, product);
    }
  }
  return text;
}

namespace {

constexpr std::string_view kLeastDigits = "9223372036854775808";

SizeExpr read_size_expr(TextCursor& in, std::span<const std::string> names) {
  std::vector<SizeExpr::Term> terms;
  while (true) {
    in.skip_space();
    int64_t sign = 1;
    if (in.accept("-")) {
      sign = -1;
    } else if (!terms.empty() && !in.accept("+")) {
      return SizeExpr::of_terms(terms);
    }
    SizeExpr::Term& term = terms.emplace_back(SizeExpr::Term{0, sign});
    in.skip_space();
    // The smallest int64 has no positive counterpart, so its digits are read separately.
    if (sign < 0 && in.accept(kLeastDigits)) {
      term.factor = std::numeric_limits<int64_t>::min();
      in.skip_space();
      if (!in.accept("*")) continue;
    }
    do {
      in.skip_space();
      if (in.peek() >= '0' && in.peek() <= '9') {
        term.factor = multiply(term.factor, in.read_integer());
        continue;
      }
      const std::string_view name = in.read_word();
      const auto found = std::ranges::find(names, name);
      if (found == names.end()) in.fail(fmt::format("expected a number or a size, got '{}'", name));
      const SizeSet bit = SizeSet{1} << (found - names.begin());
      if ((term.sizes & bit) != 0) in.fail(fmt::format("{} appears twice in a product", name));
      term.sizes |= bit;
    } while (in.skip_space(), in.accept("*"));
  }
}

}  // namespace

SizeExpr parse_size_expr(TextCursor& in, std::span<const std::string> names) {
  const TextCursor start = in;
  try {
    return read_size_expr(in, names);
  } catch (const ParseError&) {
    throw;
  } catch (const Error& error) {
    start.fail(error.what());
  }
}

}  // namespace stagecraft
