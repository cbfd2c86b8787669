#include "stagecraft/tree/tree_match.h"

#include "stagecraft/base/error.h"
#include "stagecraft/tree/tree_text.h"
#include "tests/support/expect_error.h"

namespace stagecraft::tree {
namespace {

std::string difference(const char* expected, const char* actual,
                       Sequences sequences = Sequences::kExact) {
  const auto found = find_difference(parse_tree_spec(expected), parse_tree_spec(actual), sequences);
  return found ? "args" + found->path + ": " + found->message : "same";
}

TEST(TreeMatch, NamesThePathOfTheFirstDifference) {
  EXPECT_EQ(difference("*", "*"), "same");
  EXPECT_EQ(difference("(*, {\"mask\": (*, *)})", "(*, {\"mask\": *})"),
            "args[1][\"mask\"]: expected tuple of 2, got leaf");
  EXPECT_EQ(difference("(*, *)", "(*, *, *)"), "args: expected tuple of 2, got tuple of 3");
  EXPECT_EQ(difference("[(*,)]", "[[*]]"), "args[0]: expected tuple of 1, got list of 1");
  EXPECT_EQ(difference("{\"a\": *, \"b\": *}", "{\"a\": *}"), "args: the key \"b\" is missing");
  EXPECT_EQ(difference("{\"a\": *}", "{\"b\": *, \"a\": *}"),
            "args: the key \"b\" is not expected");
  EXPECT_EQ(difference("{}", "()"), "args: expected dict of 0, got tuple of 0");
}

TEST(TreeMatch, SequencesCanBeAlike) {
  EXPECT_EQ(difference("[(*,), *]", "([*], *)", Sequences::kAlike), "same");
  EXPECT_EQ(difference("[*, *]", "(*,)", Sequences::kAlike),
            "args: expected list of 2, got tuple of 1");
  EXPECT_EQ(difference("[]", "{}", Sequences::kAlike), "args: expected list of 0, got dict of 0");
}

TEST(TreeMatch, LeavesOfDictsAreMatchedByKey) {
  const auto expected = parse_tree_spec("({\"a\": *, \"b\": (*, *)}, *)");
  const auto actual = parse_tree_spec("({\"b\": (*, *), \"a\": *}, *)");
  EXPECT_THAT(match(expected, actual, "x"), testing::ElementsAre(2, 0, 1, 3));
  EXPECT_EQ(expected, actual);
  EXPECT_ERROR(match(expected, parse_tree_spec("({\"b\": *, \"a\": *}, *)"), "kwargs"),
               MetadataError, "kwargs[0][\"b\"]: expected tuple of 2, got leaf");
}

}  // namespace
}  // namespace stagecraft::tree
