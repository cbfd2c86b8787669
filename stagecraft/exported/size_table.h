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

/// The sizes of a graph that is being imported, by their symbols in the archive, and arithmetic
/// with them. A result that a SizeExpr cannot express becomes a size with a rule.
class SizeTable {
 public:
  const std::vector<GraphSize>& sizes() const { return sizes_; }
  std::vector<GraphSize>& sizes() { return sizes_; }

  bool has(std::string_view symbol) const { return by_symbol_.contains(symbol); }
  /// GraphError if there are too many sizes.
  void add(const std::string& symbol, GraphSize size);

  SizeExpr sum(const SizeExpr& a, const SizeExpr& b) const;
  SizeExpr product(const SizeExpr& a, const SizeExpr& b);
  SizeExpr power(const SizeExpr& base, int64_t exponent);
  /// A number if both are numbers; otherwise a size with that rule.
  SizeExpr apply(SizeRule::Op op, const SizeExpr& a, const SizeExpr& b);

  /// The meaning of a word of an expression that is not a symbol; nothing if it is unknown.
  using Words = std::function<std::optional<SizeExpr>(TextCursor& in)>;

  /// Parses an expression in sympy's form, `Add(Symbol('s0', integer=True), Integer(1))`, or in
  /// Python's, `s0 + 1`; bools are 1 and 0. GraphError, with the text, for unknown symbols, floats,
  /// and functions without a rule.
  SizeExpr parse(std::string_view text, const Words& words = {});
  /// The same, but adds no size. Nothing if a size would have to be added, or if the text cannot be
  /// parsed.
  std::optional<SizeExpr> find(std::string_view text);

  /// The value at the sizes of the example.
  int64_t example(const SizeExpr& expr) const;

  /// The table with which a branch starts. It has the same symbols, and the caller of the branch
  /// passes their values.
  SizeTable for_branch() const;

 private:
  SizeExpr square_free(SizeExpr::Term a, SizeExpr::Term b);
  SizeExpr add_rule(const SizeRule& rule);

  std::vector<GraphSize> sizes_;
  std::map<std::string, int, std::less<>> by_symbol_;
  std::map<std::string, SizeExpr, std::less<>> parsed_;
  bool is_closed_ = false;
};

/// The least size, up to 100,000, at which an expression over that symbol alone has a value.
/// Nothing if there is none, or if the text cannot be parsed.
std::optional<int64_t> solve(std::string_view text, const std::string& symbol, int64_t value);

}  // namespace stagecraft::exported
