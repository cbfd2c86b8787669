#include "stagecraft/exported/size_table.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "stagecraft/base/error.h"
#include "tests/support/expect_error.h"

namespace stagecraft::exported {
namespace {

SizeTable table_of(const std::vector<int64_t>& examples) {
  SizeTable table;
  for (std::size_t i = 0; i < examples.size(); ++i) {
    GraphSize size;
    size.name = fmt::format("size{}", i);
    size.example = examples[i];
    size.least = 0;
    table.add(fmt::format("s{}", i), std::move(size));
  }
  return table;
}

int64_t value_of(const std::string& text, const std::vector<int64_t>& examples = {5, 3, 2}) {
  SizeTable table = table_of(examples);
  return table.example(table.parse(text));
}

TEST(SizeTable, ReadsPythonsForm) {
  EXPECT_EQ(value_of("s0"), 5);
  EXPECT_EQ(value_of("2*s0 + s1*s2 - 1"), 15);
  EXPECT_EQ(value_of("-s0 // 2"), -3);
  EXPECT_EQ(value_of("-s0 % 3"), 1);
  EXPECT_EQ(value_of("s0 % -3"), -1);
  EXPECT_EQ(value_of("-2**2"), -4);
  EXPECT_EQ(value_of("(-2)**2"), 4);
  EXPECT_EQ(value_of("2**3**2"), 512);
  EXPECT_EQ(value_of("s0**3"), 125);
  EXPECT_EQ(value_of("2 <= s1 < 4"), 1);
  EXPECT_EQ(value_of("2 <= s1 < 3"), 0);
  EXPECT_EQ(value_of("s0 == 5 and not s1 == 3 or s2 != 2"), 0);
  EXPECT_EQ(value_of("max(s0, s1) - min(s0, s1, s2) + abs(s1 - s0)"), 5);
  EXPECT_EQ(value_of("True + int(s0)"), 6);
  EXPECT_EQ(value_of("bool(s0) + bool(s0 - 5)"), 1);
  EXPECT_EQ(value_of("10 - 3 - 2"), 5);
  EXPECT_EQ(value_of("100 // 7 // 2"), 7);
}

TEST(SizeTable, ReadsTheEnginesForm) {
  const std::string s0 = "Symbol('s0', positive=True, integer=True)";
  EXPECT_EQ(value_of(s0), 5);
  EXPECT_EQ(value_of("Symbol('s1')"), 3);
  EXPECT_EQ(value_of(fmt::format("Add(Mul(Integer(-1), {}), Integer(2))", s0)), -3);
  EXPECT_EQ(value_of(fmt::format("FloorDiv({}, Integer(2))", s0)), 2);
  EXPECT_EQ(value_of(fmt::format("CeilDiv({}, Integer(2))", s0)), 3);
  EXPECT_EQ(value_of(fmt::format("Mod({}, Integer(3))", s0)), 2);
  EXPECT_EQ(value_of(fmt::format("PythonMod(Mul(Integer(-1), {}), Integer(3))", s0)), 1);
  EXPECT_EQ(value_of(fmt::format("ModularIndexing({}, Integer(2), Integer(2))", s0)), 0);
  EXPECT_EQ(value_of(fmt::format("Pow({}, Integer(2))", s0)), 25);
  EXPECT_EQ(value_of(fmt::format("PowByNatural(Integer(2), {})", s0)), 32);
  EXPECT_EQ(value_of(fmt::format("PowByNatural(Integer(-1), {})", s0)), -1);
  EXPECT_EQ(value_of(fmt::format("LShift({}, Integer(2))", s0)), 20);
  EXPECT_EQ(value_of(fmt::format("RShift({}, Integer(1))", s0)), 2);
  EXPECT_EQ(value_of(fmt::format("Where(Equality({}, Integer(5)), Integer(7), Integer(8))", s0)),
            7);
  EXPECT_EQ(value_of(fmt::format("Piecewise(ExprCondPair(Integer(1), StrictLessThan({0}, "
                                 "Integer(5))), ExprCondPair(Integer(2), true))",
                                 s0)),
            2);
  EXPECT_EQ(value_of(fmt::format("Max(Integer(1), {}, Integer(3))", s0)), 5);
  EXPECT_EQ(value_of(fmt::format("And(Ge({0}, Integer(5)), Le({0}, Integer(5)))", s0)), 1);
}

TEST(SizeTable, NumbersNeedNoSize) {
  SizeTable table = table_of({5});
  EXPECT_EQ(table.parse("7 // 2 * s0 + 3 % 2"), table.parse("3*s0 + 1"));
  EXPECT_EQ(table.sizes().size(), 1U);
  EXPECT_EQ(table.parse("s0 // 2"), table.parse("FloorDiv(Symbol('s0'), Integer(2))"));
  EXPECT_EQ(table.sizes().size(), 2U);
}

TEST(SizeTable, ASizeWithARuleIsFoundByItsName) {
  SizeTable table = table_of({6});
  const SizeExpr half = table.parse("s0 // 2");
  EXPECT_EQ(table.parse(table.sizes().back().name), half);
  EXPECT_FALSE(table.has(""));
}

TEST(SizeTable, FindAddsNothing) {
  SizeTable table = table_of({5});
  EXPECT_EQ(table.find("s0 // 2"), std::nullopt);
  EXPECT_EQ(table.find("s0 +"), std::nullopt);
  EXPECT_EQ(table.find("unknown"), std::nullopt);
  EXPECT_EQ(table.sizes().size(), 1U);
  const SizeExpr half = table.parse("s0 // 2");
  EXPECT_EQ(table.find("s0 // 2"), half);
  EXPECT_NE(table.find("2*s0 + 1"), std::nullopt);
}

std::string nested_sizes(const std::string& open, int times, const std::string& close) {
  std::string text;
  for (int i = 0; i < times; ++i) text += open;
  text += "s0";
  for (int i = 0; i < times; ++i) text += close;
  return text;
}

TEST(SizeTable, SaysWhatItCannotRead) {
  struct Case {
    std::string text;
    std::string message;
  };
  const std::vector<Case> cases = {
      {"", "expected a number or a symbol, got the end of the text"},
      {"s9", "column 1: the inputs do not determine 's9'"},
      {"Symbol('u0')", "the inputs do not determine 'u0'"},
      {"Symbol('s0", "expected"},
      {"Symbol(s0)", "expected"},
      {"1.5*s0", "a float is not a size"},
      {"Float('1.5', precision=53)", "expected a number or a symbol"},
      {"1e3", "a float is not a size"},
      {"s0 / 2", "a quotient is not a whole number"},
      {"s0 ** s1", "an exponent depends on a size"},
      {"s0 ** -1", "a size cannot be raised to the power of -1"},
      {"s0 ** 64", "a size cannot be raised to the power of 64"},
      {"LShift(s0, -1)", "a size cannot be raised to the power of -1"},
      {"LShift(s0, 62)", "there is no rule for LShift of 2"},
      {"FloatTrueDiv(s0, 2)", "there is no rule for FloatTrueDiv of 2"},
      {"sqrt(s0)", "there is no rule for sqrt of 1"},
      {"Add()", "Add has no arguments"},
      {"Piecewise()", "expected pieces, got none"},
      {"s0 +", "expected a number or a symbol"},
      {"(s0", "expected"},
      {"s0)", "expected the end"},
      {"s0 s1", "expected the end"},
      {"max(s0, )", "expected a number or a symbol"},
      {"99999999999999999999", "the integer does not fit into 64 bits"},
      {"Integer(99999999999999999999)", "the integer does not fit into 64 bits"},
      {"9223372036854775807 + 1", "a size overflows"},
      {"9223372036854775807*s0*9", "a size overflows"},
      {"s0*9223372036854775807 + s0", "a size overflows"},
      {"s0 // 0", "a size divides by 0"},
      {"5 % 0", "a size divides by 0"},
      {"s0 % (s1 - 3)", "a size divides by 0"},
      {"(s0 + 9223372036854775807) // 2", "a size overflows"},
      {"s0**40", "a size overflows"},
      {"s0 + \xff", "expected a number or a symbol"},
      {nested_sizes("(", 100000, ")"), "nested too deep"},
      {nested_sizes("-", 100000, ""), "nested too deep"},
      {nested_sizes("not ", 100000, ""), "nested too deep"},
      {nested_sizes("Max(1, ", 100000, ")"), "nested too deep"},
      {nested_sizes("2 ** ", 100000, ""), "nested too deep"},
  };
  for (const Case& each : cases) {
    SizeTable table = table_of({5, 3, 2});
    EXPECT_ERROR(table.parse(each.text), GraphError, each.message) << each.text.substr(0, 100);
    EXPECT_ERROR(table.parse(each.text), GraphError, "does not follow from the inputs' sizes");
  }
}

TEST(SizeTable, RefusesTooManySizes) {
  SizeTable table = table_of(std::vector<int64_t>(SizeExpr::kMaxSizes, 4));
  EXPECT_EQ(table.example(table.parse("s0 + s61")), 8);
  EXPECT_ERROR(table.parse("s0 // 2"), GraphError,
               "the model has more than 62 sizes and numbers that follow from them");
  EXPECT_ERROR(table.add("s62", {}), GraphError, "the model has more than 62 sizes");
}

// (s0 + 1) (s1 + 1) ... has 2^40 terms.
TEST(SizeTable, RefusesTooManyTerms) {
  SizeTable table = table_of(std::vector<int64_t>(40, 1));
  std::string text = "1";
  for (int i = 0; i < 40; ++i) text += fmt::format("*(s{} + 1)", i);
  EXPECT_ERROR(table.parse(text), GraphError, "it has more than 256 terms");
}

TEST(SizeTable, PowersOfMinusOneTakeNoTime) {
  EXPECT_EQ(value_of("PowByNatural(-1, s0)", {int64_t{1} << 62}), 1);
  EXPECT_EQ(value_of("PowByNatural(1, s0)", {int64_t{1} << 62}), 1);
  EXPECT_EQ(value_of("PowByNatural(0, s0)", {int64_t{1} << 62}), 0);
  EXPECT_ERROR(value_of("PowByNatural(2, s0)", {int64_t{1} << 62}), GraphError, "overflows");
}

TEST(SizeTable, FindsTheSizeThatGivesAValue) {
  EXPECT_EQ(solve("2*s0", "s0", 6), 3);
  EXPECT_EQ(solve("2*s0", "s0", 7), std::nullopt);
  EXPECT_EQ(solve("Mul(Integer(2), FloorDiv(Symbol('s0'), Integer(3)))", "s0", 6), 9);
  EXPECT_EQ(solve("12 // s0", "s0", 4), 3);
  EXPECT_EQ(solve("s0 + s1", "s0", 6), std::nullopt);
  EXPECT_EQ(solve("s0", "s0", -1), std::nullopt);
  EXPECT_EQ(solve("s0 + 1", "s0", std::numeric_limits<int64_t>::max()), std::nullopt);
}

// Random expressions, in both forms, against an evaluator that knows only Python's rules. ---------

/// An expression with its two texts, and its value where that fits.
struct Random {
  std::string engine;
  std::string python;
  std::optional<int64_t> value;
};

using Number = std::optional<int64_t>;

Number sum(int64_t a, int64_t b) {
  int64_t result = 0;
  return __builtin_add_overflow(a, b, &result) ? Number() : Number(result);
}

Number difference(int64_t a, int64_t b) {
  int64_t result = 0;
  return __builtin_sub_overflow(a, b, &result) ? Number() : Number(result);
}

Number product(int64_t a, int64_t b) {
  int64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? Number() : Number(result);
}

/// Rounded down; long doubles hold all 64 bits.
Number quotient(int64_t a, int64_t b) {
  if (b == 0 || (b == -1 && a == std::numeric_limits<int64_t>::min())) return std::nullopt;
  return static_cast<int64_t>(
      std::floor(static_cast<long double>(a) / static_cast<long double>(b)));
}

Number remainder(int64_t a, int64_t b) {
  const Number whole = quotient(a, b);
  if (!whole) return std::nullopt;
  const Number back = product(*whole, b);
  return back ? difference(a, *back) : std::nullopt;
}

class Generator {
 public:
  Generator(uint64_t seed, const std::vector<int64_t>& sizes) : random_(seed), sizes_(sizes) {}

  Random make(int depth) {
    if (depth == 0 || random_() % 6 == 0) return atom();
    const Random a = make(depth - 1);
    const Random b = make(depth - 1);
    const bool is_known = a.value && b.value;
    const int64_t left = a.value.value_or(0);
    const int64_t right = b.value.value_or(0);
    switch (random_() % 12) {
      case 0:
      case 1:
        return both(a, b, "Add({}, {})", "({} + {})", sum(left, right));
      case 2:
        return both(a, b, "Add({}, Mul(Integer(-1), {}))", "({} - {})", difference(left, right));
      case 3:
      case 4:
        return both(a, b, "Mul({}, {})", "({} * {})", product(left, right));
      case 5:
        return both(a, b, "FloorDiv({}, {})", "({} // {})", quotient(left, right));
      case 6:
        return both(a, b, "PythonMod({}, {})", "({} % {})", remainder(left, right));
      case 7:
        return both(a, b, "Max({}, {})", "max({}, {})", left > right ? left : right);
      case 8:
        return both(a, b, "Min({}, {})", "min({}, {})", left < right ? left : right);
      case 9:
        return both(a, b, "StrictLessThan({}, {})", "({} < {})", left < right ? 1 : 0);
      case 10: {
        const bool is_either = random_() % 2 == 0;
        const bool holds = is_either ? left != 0 || right != 0 : left != 0 && right != 0;
        return both(a, b, is_either ? "Or(Ne({}, 0), Ne({}, 0))" : "And(Ne({}, 0), Ne({}, 0))",
                    is_either ? "({} != 0 or {} != 0)" : "({} != 0 and {} != 0)",
                    is_known && holds ? 1 : 0);
      }
      default:
        return {fmt::format("Pow({}, Integer(2))", a.engine), fmt::format("(({}) ** 2)", a.python),
                a.value ? product(left, left) : std::nullopt};
    }
  }

 private:
  Random atom() {
    if (random_() % 2 == 0) {
      const std::size_t i = random_() % sizes_.size();
      return {fmt::format("Symbol('s{}', integer=True)", i), fmt::format("s{}", i), sizes_[i]};
    }
    const auto number = static_cast<int64_t>(random_() % 9) - 3;
    return {fmt::format("Integer({})", number),
            number < 0 ? fmt::format("({})", number) : fmt::format("{}", number), number};
  }

  static Random both(const Random& a, const Random& b, const std::string& engine,
                     const std::string& python, Number value) {
    return {fmt::format(fmt::runtime(engine), a.engine, b.engine),
            fmt::format(fmt::runtime(python), a.python, b.python),
            a.value && b.value ? value : std::nullopt};
  }

  std::mt19937_64 random_;
  const std::vector<int64_t>& sizes_;
};

/// At sizes other than those it was read with.
int64_t at_sizes(const SizeTable& table, const SizeExpr& expr, std::vector<int64_t> sizes) {
  for (std::size_t i = sizes.size(); i < table.sizes().size(); ++i) {
    sizes.push_back(table.sizes()[i].rule->at(sizes));
  }
  return expr.at(sizes);
}

TEST(SizeTable, RandomExpressionsAreWhatPythonMakesOfThem) {
  std::size_t known = 0;
  std::size_t refused = 0;
  constexpr uint64_t kSeeds = 20000;
  std::cout << "seeds 0 to " << kSeeds << "\n";
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<int64_t> sizes;
    std::vector<int64_t> other;
    for (int i = 0; i < 3; ++i) {
      sizes.push_back(static_cast<int64_t>(random() % 12));
      other.push_back(static_cast<int64_t>(random() % 12));
    }
    const int depth = 1 + static_cast<int>(seed % 5);
    const Random at_example = Generator(seed, sizes).make(depth);
    const Random elsewhere = Generator(seed, other).make(depth);
    ASSERT_EQ(at_example.engine, elsewhere.engine);
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, at_example.python));
    for (const std::string& text : {at_example.engine, at_example.python}) {
      SizeTable table = table_of(sizes);
      std::optional<SizeExpr> expr;
      try {
        expr = table.parse(text);
        const int64_t found = table.example(*expr);
        ASSERT_EQ(found, at_example.value.value_or(found));
        ++known;
      } catch (const Error&) {
        // Too large in between, a division by 0, or more sizes than there can be.
        ++refused;
        continue;
      }
      try {
        const int64_t found = at_sizes(table, *expr, other);
        ASSERT_EQ(found, elsewhere.value.value_or(found));
      } catch (const Error&) {
      }
    }
  }
  std::cout << known << " expressions known, " << refused << " refused\n";
  EXPECT_GT(known, 3 * refused);
}

}  // namespace
}  // namespace stagecraft::exported
