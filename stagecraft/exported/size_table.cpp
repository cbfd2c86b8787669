#include "stagecraft/exported/size_table.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "stagecraft/base/check.h"
#include "stagecraft/exported/size_reader.h"

namespace stagecraft::exported {

namespace {

using Op = SizeRule::Op;

/// Thrown when find() would have to add a size, and caught by it.
struct Closed {};

/// (a + 1) (b + 1) (c + 1) ... doubles its number of terms with each factor. Larger expressions are
/// refused.
constexpr std::size_t kMaxTerms = 256;

SizeExpr bounded(const std::vector<SizeExpr::Term>& terms) {
  SizeExpr result = SizeExpr::of_terms(terms);
  require<GraphError>(result.terms().size() <= kMaxTerms, "it has more than {} terms", kMaxTerms);
  return result;
}

}  // namespace

void SizeTable::add(const std::string& symbol, GraphSize size) {
  require<GraphError>(sizes_.size() < static_cast<std::size_t>(SizeExpr::kMaxSizes),
                      "the model has more than {} sizes and numbers that follow from them",
                      SizeExpr::kMaxSizes);
  by_symbol_[symbol] = static_cast<int>(sizes_.size());
  sizes_.push_back(std::move(size));
}

SizeExpr SizeTable::sum(const SizeExpr& a, const SizeExpr& b) const {
  std::vector<SizeExpr::Term> terms(a.terms().begin(), a.terms().end());
  terms.insert(terms.end(), b.terms().begin(), b.terms().end());
  return bounded(terms);
}

SizeExpr SizeTable::product(const SizeExpr& a, const SizeExpr& b) {
  std::vector<SizeExpr::Term> terms;
  for (const SizeExpr::Term& left : a.terms()) {
    for (const SizeExpr::Term& right : b.terms()) {
      const SizeExpr each = square_free(left, right);
      terms.insert(terms.end(), each.terms().begin(), each.terms().end());
    }
  }
  return bounded(terms);
}

// A size appears at most once in a product, so its square becomes a new size with a rule.
SizeExpr SizeTable::square_free(SizeExpr::Term a, SizeExpr::Term b) {
  const SizeSet common = a.sizes & b.sizes;
  const int64_t factor = stagecraft::apply(Op::kProduct, a.factor, b.factor);
  const SizeExpr::Term term{(a.sizes | b.sizes) & ~common, factor};
  SizeExpr result = SizeExpr::of_terms({&term, 1});
  for (SizeSet left = common; left != 0; left &= left - 1) {
    const SizeExpr once = SizeExpr::of_size(std::countr_zero(left));
    result = product(result, add_rule({Op::kProduct, once, once}));
  }
  return result;
}

SizeExpr SizeTable::power(const SizeExpr& base, int64_t exponent) {
  require<GraphError>(exponent >= 0 && exponent < 64, "a size cannot be raised to the power of {}",
                      exponent);
  SizeExpr result(1);
  for (int64_t i = 0; i < exponent; ++i) result = product(result, base);
  return result;
}

SizeExpr SizeTable::apply(SizeRule::Op op, const SizeExpr& a, const SizeExpr& b) {
  if (a.is_number() && b.is_number()) {
    return SizeExpr(stagecraft::apply(op, a.number(), b.number()));
  }
  if (op == Op::kFloorDiv && b == SizeExpr(1)) return a;
  if (a == b && (op == Op::kEqual || op == Op::kAtMost)) return SizeExpr(1);
  if (a == b && (op == Op::kUnequal || op == Op::kLess)) return SizeExpr(0);
  return add_rule({op, a, b});
}

SizeExpr SizeTable::add_rule(const SizeRule& rule) {
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    if (sizes_[i].rule == rule) return SizeExpr::of_size(static_cast<int>(i));
  }
  if (is_closed_) throw Closed();
  std::vector<int64_t> examples;
  for (const GraphSize& size : sizes_) examples.push_back(size.example);
  GraphSize size;
  size.name = fmt::format("n{}", sizes_.size());
  while (std::ranges::count(sizes_, size.name, &GraphSize::name) > 0) size.name += "_";
  size.example = rule.at(examples);
  size.rule = rule;
  const auto number = static_cast<int>(sizes_.size());
  const std::string name = size.name;
  add(name, std::move(size));
  return SizeExpr::of_size(number);
}

SizeExpr SizeTable::parse(std::string_view text, const Words& words) {
  const auto known = by_symbol_.find(text);
  if (known != by_symbol_.end()) return SizeExpr::of_size(known->second);
  const auto before = parsed_.find(text);
  if (before != parsed_.end()) return before->second;
  try {
    SizeExpr result = read_size(*this, text, words);
    parsed_.emplace(text, result);
    return result;
  } catch (const Error& error) {
    throw GraphError(fmt::format("the number '{}' does not follow from the inputs' sizes: {}", text,
                                 error.what()));
  }
}

std::optional<SizeExpr> SizeTable::find(std::string_view text) {
  const bool was_closed = std::exchange(is_closed_, true);
  std::optional<SizeExpr> result;
  try {
    result = parse(text);
  } catch (const Closed&) {
  } catch (const Error&) {
  }
  is_closed_ = was_closed;
  return result;
}

int64_t SizeTable::example(const SizeExpr& expr) const {
  std::vector<int64_t> examples;
  for (const GraphSize& size : sizes_) examples.push_back(size.example);
  return expr.at(examples);
}

SizeTable SizeTable::for_branch() const {
  SizeTable result = *this;
  for (GraphSize& size : result.sizes_) {
    if (size.measured) size.least = std::numeric_limits<int64_t>::min();
    size.measured.reset();
  }
  return result;
}

std::optional<int64_t> solve(std::string_view text, const std::string& symbol, int64_t value) {
  constexpr int64_t kFarthest = 100000;
  SizeTable table;
  SizeExpr expr;
  try {
    GraphSize size;
    size.name = symbol;
    size.example = 1;
    table.add(symbol, std::move(size));
    expr = table.parse(text);
  } catch (const Error&) {
    return std::nullopt;
  }
  std::vector<int64_t> sizes(table.sizes().size());
  for (sizes[0] = 0; sizes[0] <= kFarthest; ++sizes[0]) {
    try {
      for (std::size_t i = 1; i < sizes.size(); ++i) sizes[i] = table.sizes()[i].rule->at(sizes);
      if (expr.at(sizes) == value) return sizes[0];
    } catch (const Error&) {  // it overflows there, or divides by 0
    }
  }
  return std::nullopt;
}

}  // namespace stagecraft::exported
