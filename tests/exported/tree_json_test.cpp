#include "stagecraft/exported/tree_json.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stagecraft/base/error.h"
#include "tests/exported/small_archive.h"
#include "tests/support/expect_error.h"

namespace stagecraft::exported {
namespace {

using Json = nlohmann::json;

TreeSpec tree_of(const Json& tree) {
  return read_tree(Json::array({1, tree}).dump(), "in_spec");
}

Json of_class(const std::string& type, const Json& context, std::vector<Json> children) {
  return {{"type", type}, {"context", context}, {"children_spec", std::move(children)}};
}

TEST(TreeJson, ReadsWhatPythonHas) {
  const TreeSpec leaf = TreeSpec::leaf();
  EXPECT_EQ(tree_of(leaf_tree()), leaf);
  EXPECT_EQ(tree_of(tuple_tree({})), TreeSpec::tuple({}));
  EXPECT_EQ(tree_of(tuple_tree({leaf_tree(), tuple_tree({leaf_tree()})})),
            TreeSpec::tuple({leaf, TreeSpec::tuple({leaf})}));
  EXPECT_EQ(tree_of(dict_tree({"b", "a"}, {leaf_tree(), leaf_tree()})),
            TreeSpec::dict({"b", "a"}, {leaf, leaf}));
  EXPECT_EQ(tree_of(of_class("builtins.list", "null", {leaf_tree()})), TreeSpec::list({leaf}));
  EXPECT_EQ(tree_of(of_class("collections.deque", "3", {leaf_tree()})), TreeSpec::list({leaf}));
  EXPECT_EQ(tree_of(of_class("collections.namedtuple", R"({"class_name": "P"})", {leaf_tree()})),
            TreeSpec::tuple({leaf}));
  EXPECT_EQ(tree_of(of_class("collections.OrderedDict", R"(["k"])", {leaf_tree()})),
            TreeSpec::dict({"k"}, {leaf}));
  EXPECT_EQ(tree_of(of_class("collections.defaultdict",
                             R"({"default_factory_module": "builtins", "dict_context": ["k"]})",
                             {leaf_tree()})),
            TreeSpec::dict({"k"}, {leaf}));
}

TEST(TreeJson, NumbersAsKeysBecomeTexts) {
  EXPECT_EQ(tree_of(of_class("builtins.dict", "[3, -1]", {leaf_tree(), leaf_tree()})),
            TreeSpec::dict({"3", "-1"}, {TreeSpec::leaf(), TreeSpec::leaf()}));
  EXPECT_EQ(tree_of(of_class("builtins.dict", "[18446744073709551615]", {leaf_tree()})),
            TreeSpec::dict({"18446744073709551615"}, {TreeSpec::leaf()}));
}

// As outputs of Hugging Face models.
TEST(TreeJson, OtherClassesAreDictsWhereTheyNameTheirMembers) {
  EXPECT_EQ(tree_of(of_class("some.Output", R"(["logits"])", {leaf_tree()})),
            TreeSpec::dict({"logits"}, {TreeSpec::leaf()}));
  for (const Json& context : {Json("null"), Json(nullptr), Json("no JSON"), Json("[null]"),
                              Json(R"(["a", "b"])"), Json("[\"a\"")}) {
    EXPECT_EQ(tree_of(of_class("some.Output", context, {leaf_tree()})),
              TreeSpec::tuple({TreeSpec::leaf()}))
        << context;
  }
}

TEST(TreeJson, RefusesDictsWithoutKeys) {
  for (const Json& context : {Json("null"), Json(nullptr), Json("no JSON"), Json("[null, 1]"),
                              Json(R"(["a"])"), Json(R"(["a", "a"])"), Json(R"(["1", 1])"),
                              Json(R"({"dict_context": {"dict_context": ["a", "b"]}})")}) {
    EXPECT_ERROR(tree_of(of_class("builtins.dict", context, {leaf_tree(), leaf_tree()})), FileError,
                 "in_spec[1]: expected a dict with unique string keys")
        << context;
  }
}

TEST(TreeJson, NamesThePlaceOfWhatIsWrong) {
  EXPECT_ERROR(read_tree("", "in_spec"), FileError, "in_spec is not JSON: ");
  EXPECT_ERROR(read_tree("{}", "in_spec"), FileError, "in_spec: expected a list, got object");
  EXPECT_ERROR(read_tree("[]", "in_spec"), FileError, "in_spec: expected at least 1 elements");
  EXPECT_ERROR(read_tree("[1]", "in_spec"), FileError, "in_spec: expected at least 2 elements");
  EXPECT_ERROR(read_tree("[2, {}]", "in_spec"), FileError,
               "in_spec: it is written in version 2, expected 1");
  EXPECT_ERROR(read_tree("[\"1\", {}]", "in_spec"), FileError, "in_spec[0]: expected a whole num");
  EXPECT_ERROR(tree_of({{"type", 3}}), FileError, "in_spec[1].type: expected a text, got number");
  EXPECT_ERROR(tree_of({{"type", "builtins.tuple"}}), FileError,
               "in_spec[1]: expected a member 'children_spec', got none");
  EXPECT_ERROR(
      tree_of(tuple_tree({leaf_tree(), {{"type", "builtins.tuple"}, {"children_spec", 1}}})),
      FileError, "in_spec[1].children_spec[1].children_spec: expected a list, got number");
  EXPECT_ERROR(tree_of(of_class("builtins.dict", 3, {})), FileError,
               "in_spec[1].context: expected a text, got number");
}

TEST(TreeJson, RefusesDeepNesting) {
  Json tree = leaf_tree();
  for (int i = 0; i < 256; ++i) tree = tuple_tree({std::move(tree)});
  EXPECT_EQ(tree_of(tree).num_leaves(), 1U);
  EXPECT_ERROR(tree_of(tuple_tree({tree})), FileError, "nested deeper than 256");
  std::string context;
  for (int i = 0; i < 100000; ++i) context += R"({"dict_context":)";
  context += "1" + std::string(100000, '}');
  EXPECT_ERROR(tree_of(of_class("builtins.dict", context, {})), FileError, "unique string keys");
}

}  // namespace
}  // namespace stagecraft::exported
