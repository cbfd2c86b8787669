#include "stagecraft/exported/size_table.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/text_cursor.h"

namespace stagecraft::exported {

namespace {

using Op = SizeRule::Op;

/// Thrown and caught here: find() must not add a size.
struct Closed {};

constexpr int kMaxSizeDepth = 200;
/// (a + 1) (b + 1) (c + 1) ... has twice as many terms with each factor.
constexpr std::size_t kMaxTerms = 256;

SizeExpr bounded(const std::vector<SizeExpr::Term>& terms) {
  SizeExpr result = SizeExpr::of_terms(terms);
  require<GraphError>(result.terms().size() <= kMaxTerms, "it has more than {} terms", kMaxTerms);
  return result;
}

/// Both forms, by recursive descent.
class ExpressionReader {
 public:
  ExpressionReader(SizeTable& table, std::string_view text, const SizeTable::Words& words)
      : table_(table), in_(text), words_(words) {}

  SizeExpr read() {
    SizeExpr result = read_or();
    in_.skip_space();
    in_.expect_end();
    return result;
  }

 private:
  class Depth {
   public:
    explicit Depth(ExpressionReader& reader) : reader_(reader) {
      if (++reader_.depth_ > kMaxSizeDepth) reader_.in_.fail("nested too deep");
    }
    ~Depth() { --reader_.depth_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;

   private:
    ExpressionReader& reader_;
  };

  bool accept_word(std::string_view word) {
    in_.skip_space();
    const TextCursor start = in_;
    if (in_.read_word() == word) return true;
    in_ = start;
    return false;
  }

  bool accept(std::string_view token) {
    in_.skip_space();
    return in_.accept(token);
  }

  SizeExpr truth(const SizeExpr& value) { return table_.apply(Op::kUnequal, value, SizeExpr(0)); }

  SizeExpr read_or() {
    const Depth depth(*this);
    SizeExpr result = read_and();
    while (accept_word("or")) result = table_.apply(Op::kEither, result, read_and());
    return result;
  }

  SizeExpr read_and() {
    SizeExpr result = read_not();
    while (accept_word("and")) result = table_.apply(Op::kBoth, result, read_not());
    return result;
  }

  SizeExpr read_not() {
    const Depth depth(*this);
    if (accept_word("not")) return table_.apply(Op::kEqual, read_not(), SizeExpr(0));
    return read_comparison();
  }

  SizeExpr compare(std::string_view how, const SizeExpr& a, const SizeExpr& b) {
    if (how == "==") return table_.apply(Op::kEqual, a, b);
    if (how == "!=") return table_.apply(Op::kUnequal, a, b);
    if (how == "<=") return table_.apply(Op::kAtMost, a, b);
    if (how == ">=") return table_.apply(Op::kAtMost, b, a);
    if (how == "<") return table_.apply(Op::kLess, a, b);
    return table_.apply(Op::kLess, b, a);
  }

  // Comparisons may be chained: 2 <= x < 5.
  SizeExpr read_comparison() {
    SizeExpr left = read_sum();
    std::optional<SizeExpr> result;
    while (true) {
      std::string_view found;
      for (const std::string_view how : {"==", "!=", "<=", ">=", "<", ">"}) {
        if (found.empty() && accept(how)) found = how;
      }
      if (found.empty()) return result ? *result : left;
      const SizeExpr right = read_sum();
      const SizeExpr holds = compare(found, left, right);
      result = result ? table_.apply(Op::kBoth, *result, holds) : holds;
      left = right;
    }
  }

  SizeExpr negative(const SizeExpr& value) { return table_.product(value, SizeExpr(-1)); }

  SizeExpr read_sum() {
    SizeExpr result = read_product();
    while (true) {
      if (accept("+")) {
        result = table_.sum(result, read_product());
      } else if (accept("-")) {
        result = table_.sum(result, negative(read_product()));
      } else {
        return result;
      }
    }
  }

  SizeExpr read_product() {
    SizeExpr result = read_factor();
    while (true) {
      in_.skip_space();
      if (in_.accept("//")) {
        result = table_.apply(Op::kFloorDiv, result, read_factor());
      } else if (in_.accept("%")) {
        result = table_.apply(Op::kMod, result, read_factor());
      } else if (in_.accept("*")) {
        result = table_.product(result, read_factor());
      } else {
        if (in_.peek() == '/') in_.fail("a quotient is not a whole number");
        return result;
      }
    }
  }

  SizeExpr read_factor() {
    const Depth depth(*this);
    if (accept("-")) return negative(read_factor());
    if (accept("+")) return read_factor();
    SizeExpr base = read_atom();
    if (accept("**")) {
      const TextCursor start = in_;
      const SizeExpr exponent = read_factor();
      if (!exponent.is_number()) start.fail("an exponent depends on a size");
      return table_.power(base, exponent.number());
    }
    return base;
  }

  SizeExpr read_atom() {
    in_.skip_space();
    if (in_.accept("(")) {
      SizeExpr result = read_or();
      in_.skip_space();
      in_.expect(")");
      return result;
    }
    if (in_.peek() >= '0' && in_.peek() <= '9') {
      const int64_t number = in_.read_integer();
      if (in_.peek() == '.' || in_.peek() == 'e') in_.fail("a float is not a size");
      return SizeExpr(number);
    }
    const TextCursor start = in_;
    if (words_) {
      if (const auto found = words_(in_)) return *found;
      in_ = start;
    }
    const std::string word(in_.read_word());
    if (word.empty()) in_.fail("expected a number or a symbol, got " + in_.describe_next());
    if (in_.accept("(")) return read_call(word, start);
    if (word == "True" || word == "true") return SizeExpr(1);
    if (word == "False" || word == "false") return SizeExpr(0);
    return symbol(word, start);
  }

  SizeExpr symbol(const std::string& name, const TextCursor& start) {
    if (!table_.has(name)) start.fail(fmt::format("the inputs do not determine '{}'", name));
    return *table_.find(name);
  }

  std::vector<SizeExpr> read_list() {
    std::vector<SizeExpr> arguments;
    while (!accept(")")) {
      if (!arguments.empty()) in_.expect(",");
      arguments.push_back(read_or());
    }
    return arguments;
  }

  SizeExpr fold(Op op, const std::vector<SizeExpr>& arguments) {
    SizeExpr result = arguments.front();
    for (std::size_t i = 1; i < arguments.size(); ++i) {
      result = table_.apply(op, result, arguments[i]);
    }
    return result;
  }

  SizeExpr read_symbol_call() {
    in_.skip_space();
    const TextCursor start = in_;
    in_.expect("'");
    const std::string name(in_.read_word());
    in_.expect("'");
    // What is known of it: `, positive=True, integer=True`.
    while (!accept(")")) {
      in_.expect(",");
      in_.skip_space();
      in_.read_word();
      in_.expect("=");
      in_.read_word();
    }
    return symbol(name, start);
  }

  // Piecewise(ExprCondPair(a, p), ExprCondPair(b, q), ...): of the first that holds.
  SizeExpr read_piecewise(const TextCursor& start) {
    std::vector<std::pair<SizeExpr, SizeExpr>> pieces;
    while (!accept(")")) {
      if (!pieces.empty()) in_.expect(",");
      in_.skip_space();
      in_.expect("ExprCondPair(");
      SizeExpr value = read_or();
      in_.skip_space();
      in_.expect(",");
      pieces.emplace_back(std::move(value), read_or());
      in_.skip_space();
      in_.expect(")");
    }
    if (pieces.empty()) start.fail("expected pieces, got none");
    SizeExpr result = pieces.back().first;
    for (std::size_t i = pieces.size() - 1; i-- > 0;) {
      // p a + (1 - p) b
      const SizeExpr holds = truth(pieces[i].second);
      const SizeExpr difference = table_.sum(pieces[i].first, negative(result));
      result = table_.sum(result, table_.product(holds, difference));
    }
    return result;
  }

  SizeExpr read_call(const std::string& name, const TextCursor& start) {
    if (name == "Symbol") return read_symbol_call();
    if (name == "Piecewise") return read_piecewise(start);
    if (name == "Integer") {
      in_.skip_space();
      const int64_t number = in_.read_integer();
      in_.skip_space();
      in_.expect(")");
      return SizeExpr(number);
    }
    const std::vector<SizeExpr> arguments = read_list();
    const std::size_t count = arguments.size();
    if (count == 0) start.fail(fmt::format("{} of nothing", name));
    if (name == "Add") {
      SizeExpr sum;
      for (const SizeExpr& each : arguments) sum = table_.sum(sum, each);
      return sum;
    }
    if (name == "Mul") {
      SizeExpr product(1);
      for (const SizeExpr& each : arguments) product = table_.product(product, each);
      return product;
    }
    if (name == "Max" || name == "max") return fold(Op::kMax, arguments);
    if (name == "Min" || name == "min") return fold(Op::kMin, arguments);
    if (name == "And") return fold(Op::kBoth, arguments);
    if (name == "Or") return fold(Op::kEither, arguments);
    if (count == 1 && (name == "Not" || name == "not")) {
      return table_.apply(Op::kEqual, arguments[0], SizeExpr(0));
    }
    if (count == 1 && (name == "Abs" || name == "abs")) {
      return table_.apply(Op::kMax, arguments[0], negative(arguments[0]));
    }
    if (count == 1 && (name == "Identity" || name == "int")) return arguments[0];
    if (count == 1 && name == "bool") return truth(arguments[0]);
    if (count == 3 && name == "Where") {
      const SizeExpr difference = table_.sum(arguments[1], negative(arguments[2]));
      return table_.sum(arguments[2], table_.product(truth(arguments[0]), difference));
    }
    if (count == 3 && name == "ModularIndexing") {
      return table_.apply(Op::kMod, table_.apply(Op::kFloorDiv, arguments[0], arguments[1]),
                          arguments[2]);
    }
    if (count == 2) {
      const SizeExpr& a = arguments[0];
      const SizeExpr& b = arguments[1];
      if (name == "FloorDiv" || name == "CleanDiv") return table_.apply(Op::kFloorDiv, a, b);
      if (name == "CeilDiv") {
        return negative(table_.apply(Op::kFloorDiv, negative(a), b));
      }
      if (name == "BitwiseFn_bitwise_and") return table_.apply(Op::kBitAnd, a, b);
      if (name == "BitwiseFn_bitwise_or") return table_.apply(Op::kBitOr, a, b);
      if (name == "BitwiseFn_bitwise_xor") return table_.apply(Op::kBitXor, a, b);
      if (name == "Mod" || name == "PythonMod") return table_.apply(Op::kMod, a, b);
      if ((name == "Pow" || name == "PowByNatural") && b.is_number()) {
        return table_.power(a, b.number());
      }
      if (name == "PowByNatural" && a.is_number()) return table_.apply(Op::kPower, a, b);
      if (name == "LShift" && b.is_number() && b.number() < 62) {
        return table_.product(a, table_.power(SizeExpr(2), b.number()));
      }
      if (name == "RShift" && b.is_number() && b.number() < 62) {
        return table_.apply(Op::kFloorDiv, a, table_.power(SizeExpr(2), b.number()));
      }
      if (name == "Eq" || name == "Equality") return compare("==", a, b);
      if (name == "Ne" || name == "Unequality") return compare("!=", a, b);
      if (name == "Lt" || name == "StrictLessThan") return compare("<", a, b);
      if (name == "Le" || name == "LessThan") return compare("<=", a, b);
      if (name == "Gt" || name == "StrictGreaterThan") return compare(">", a, b);
      if (name == "Ge" || name == "GreaterThan") return compare(">=", a, b);
    }
    start.fail(fmt::format("there is no rule for {} of {}", name, count));
  }

  SizeTable& table_;
  TextCursor in_;
  const SizeTable::Words& words_;
  int depth_ = 0;
};

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

// A size comes at most once in a product: its square is a size of its own.
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
  add(size.name, std::move(size));
  return SizeExpr::of_size(number);
}

SizeExpr SizeTable::parse(std::string_view text, const Words& words) {
  const auto known = by_symbol_.find(text);
  if (known != by_symbol_.end()) return SizeExpr::of_size(known->second);
  const auto before = parsed_.find(text);
  if (before != parsed_.end()) return before->second;
  try {
    SizeExpr result = ExpressionReader(*this, text, words).read();
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
