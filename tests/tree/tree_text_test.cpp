#include "stagecraft/tree/tree_text.h"

#include <random>

#include "stagecraft/base/error.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

TreeSpec random_spec(std::mt19937& random, int depth) {
  const auto kind = depth == 0 ? 0 : random() % 4;
  std::vector<TreeSpec> children(kind == 0 ? 0 : random() % 4);
  for (auto& child : children) child = random_spec(random, depth - 1);
  if (kind == 0) return TreeSpec::leaf();
  if (kind == 1) return TreeSpec::tuple(children);
  if (kind == 2) return TreeSpec::list(children);
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < children.size(); ++i) {
    keys.push_back(std::string(1, static_cast<char>(random() % 128)) + "\"" + std::to_string(i));
  }
  return TreeSpec::dict(keys, children);
}

TEST(TreeText, PrintsAsOneWouldWriteIt) {
  const auto spec = TreeSpec::tuple(
      {TreeSpec::leaf(), TreeSpec::list({TreeSpec::leaf(), TreeSpec::leaf()}),
       TreeSpec::dict({"mask", "a b"}, {TreeSpec::leaf(), TreeSpec::tuple({TreeSpec::leaf()})}),
       TreeSpec::tuple({})});
  EXPECT_EQ(to_text(spec), "(*, [*, *], {\"mask\": *, \"a b\": (*,)}, ())");
  EXPECT_EQ(to_text(spec, [](std::size_t i) { return std::to_string(i); }),
            "(0, [1, 2], {\"mask\": 3, \"a b\": (4,)}, ())");
}

TEST(TreeText, ParseIsTheInverseOnRandomSpecs) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto spec = random_spec(random, 4);
    const auto parsed = parse_tree_spec(to_text(spec));
    ASSERT_EQ(parsed, spec);
    ASSERT_EQ(to_text(parsed), to_text(spec));
  }
}

TEST(TreeText, SpaceBetweenTokensIsFree) {
  EXPECT_EQ(to_text(parse_tree_spec(" ( * ,\n[ *,] , {\"a\" : *} ) ")), "(*, [*], {\"a\": *})");
}

TEST(TreeText, BadTextSaysWhere) {
  EXPECT_ERROR(parse_tree_spec("(*, x)"), ParseError,
               "line 1, column 5: expected '*', '(', '[' or '{', got 'x'");
  EXPECT_ERROR(parse_tree_spec("(*)"), ParseError, "a tuple of one is written (x,)");
  EXPECT_ERROR(parse_tree_spec("(*,\n *"), ParseError,
               "line 2, column 3: expected ')', got the end of the text");
  EXPECT_ERROR(parse_tree_spec("{\"a\": *, \"a\": *}"), ParseError,
               "line 1, column 10: the key \"a\" appears twice");
  EXPECT_ERROR(parse_tree_spec("{a: *}"), ParseError, "line 1, column 2: expected '\"', got 'a'");
  EXPECT_ERROR(parse_tree_spec("* *"), ParseError, "expected the end of the text, got '*'");
  EXPECT_ERROR(parse_tree_spec(""), ParseError, "got the end of the text");
  EXPECT_ERROR(parse_tree_spec(std::string(100000, '(')), ParseError, "nested deeper than");
}

TEST(TreeText, NoShortTextCrashesTheParser) {
  constexpr std::string_view kAlphabet = "(*,)[]{}\":a \\";
  std::mt19937 random(7);
  int accepted = 0;
  for (int i = 0; i < 50000; ++i) {
    std::string text(random() % 8, ' ');
    for (auto& c : text) c = kAlphabet[random() % kAlphabet.size()];
    try {
      const auto spec = parse_tree_spec(text);
      ASSERT_EQ(parse_tree_spec(to_text(spec)), spec) << text;
      ++accepted;
    } catch (const ParseError&) {
    }
  }
  EXPECT_GT(accepted, 100);
}

TEST(TreeSpec, KnowsItsLeavesAndTheirPaths) {
  const auto spec = parse_tree_spec("(*, {\"mask\": [*, *], \"e\": ()}, *)");
  EXPECT_EQ(spec.num_leaves(), 4u);
  EXPECT_EQ(spec.leaf_path(0, "args"), "args[0]");
  EXPECT_EQ(spec.leaf_path(2, "args"), "args[1][\"mask\"][1]");
  EXPECT_EQ(spec.leaf_path(3, "args"), "args[2]");
  EXPECT_EQ(TreeSpec::leaf().leaf_path(0, "x"), "x");
  EXPECT_ERROR(spec.leaf_path(4, "args"), ArgumentError, "leaf 4 of a tree with 4 leaves");
}

TEST(TreeSpec, DictsNeedDistinctKeys) {
  EXPECT_ERROR(TreeSpec::dict({"a", "a"}, {{}, {}}), ArgumentError, "the key \"a\" twice");
  EXPECT_ERROR(TreeSpec::dict({"a"}, {{}, {}}), ArgumentError, "got 1 keys and 2 children");
}

}  // namespace
}  // namespace stagecraft
