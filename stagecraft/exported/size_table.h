#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/graph/graph.h"

namespace stagecraft::exported {

/// The sizes of a graph that is being made, by the symbols that an archive has for them, and
/// arithmetic with them: what no SizeExpr can say becomes a size with a rule.
class SizeTable {
 public:
  const std::vector<GraphSize>& sizes() const { return sizes_; }
  std::vector<GraphSize>& sizes() { return sizes_; }

  bool has(std::string_view symbol) const { return by_symbol_.contains(symbol); }
  /// GraphError when there are too many.
  void add(const std::string& symbol, GraphSize size);

  SizeExpr sum(const SizeExpr& a, const SizeExpr& b) const;
  SizeExpr product(const SizeExpr& a, const SizeExpr& b);
  SizeExpr power(const SizeExpr& base, int64_t exponent);
  /// Of numbers, a number; otherwise a size with that rule.
  SizeExpr apply(SizeRule::Op op, const SizeExpr& a, const SizeExpr& b);

  /// What a word of an expression stands for, beyond the symbols; nothing if it is none.
  using Words = std::function<std::optional<SizeExpr>(TextCursor& in)>;

  /// Reads an expression in the engine's form, `Add(Symbol('s0', integer=True), Integer(1))`, or in
  /// Python's, `s0 + 1`; bools are 1 and 0. GraphError, with the text, for symbols that are not
  /// known, floats, and functions that there is no rule for.
  SizeExpr parse(std::string_view text, const Words& words = {});
  /// The same where no size may be added; nothing where one would have to be, or the text cannot be
  /// read.
  std::optional<SizeExpr> find(std::string_view text);

  /// At the sizes of the example.
  int64_t example(const SizeExpr& expr) const;

  /// A table with the same symbols, told by whoever calls: what a branch begins with.
  SizeTable for_branch() const;

 private:
  SizeExpr square_free(SizeExpr::Term a, SizeExpr::Term b);
  SizeExpr add_rule(const SizeRule& rule);

  std::vector<GraphSize> sizes_;
  std::map<std::string, int, std::less<>> by_symbol_;
  std::map<std::string, SizeExpr, std::less<>> parsed_;
  bool is_closed_ = false;
};

/// The least size, up to 100,000, at which an expression over that symbol alone has a value;
/// nothing where there is none, or the text cannot be read.
std::optional<int64_t> solve(std::string_view text, const std::string& symbol, int64_t value);

}  // namespace stagecraft::exported
