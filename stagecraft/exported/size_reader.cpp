#include "stagecraft/exported/size_reader.h"

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "stagecraft/base/text_cursor.h"

namespace stagecraft::exported {

namespace {

using Op = SizeRule::Op;

// A limit of the recursion, because the text may come from a hostile file.
constexpr int kMaxSizeDepth = 200;

/// Reads both forms of an expression by recursive descent.
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
    // Skips the assumptions about the symbol: `, positive=True, integer=True`.
    while (!accept(")")) {
      in_.expect(",");
      in_.skip_space();
      in_.read_word();
      in_.expect("=");
      in_.read_word();
    }
    return symbol(name, start);
  }

  // Piecewise(ExprCondPair(a, p), ExprCondPair(b, q), ...): the value of the first pair whose
  // condition holds.
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
      // p ? a : b, computed as b + p (a - b)
      const SizeExpr holds = truth(pieces[i].second);
      const SizeExpr difference = table_.sum(pieces[i].first, negative(result));
      result = table_.sum(result, table_.product(holds, difference));
    }
    return result;
  }

  /// The result of a function of two numbers. Nothing for an unknown function.
  std::optional<SizeExpr> call_of_two(const std::string& name, const SizeExpr& a,
                                      const SizeExpr& b) {
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
    return std::nullopt;
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
    if (count == 0) start.fail(fmt::format("{} has no arguments", name));
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
      if (const auto result = call_of_two(name, arguments[0], arguments[1])) return *result;
    }
    start.fail(fmt::format("there is no rule for {} of {}", name, count));
  }

  SizeTable& table_;
  TextCursor in_;
  const SizeTable::Words& words_;
  int depth_ = 0;
};

}  // namespace

SizeExpr read_size(SizeTable& table, std::string_view text, const SizeTable::Words& words) {
  return ExpressionReader(table, text, words).read();
}

}  // namespace stagecraft::exported
