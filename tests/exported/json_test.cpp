#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "stagecraft/base/error.h"
#include "stagecraft/exported/json_field.h"
#include "stagecraft/exported/json_stream.h"
#include "tests/support/expect_error.h"

namespace stagecraft::exported {
namespace {

using Json = nlohmann::json;

TEST(JsonField, SaysWhereSomethingElseWasExpected) {
  const Json json = Json::parse(R"({"a": [{"b": 3}, "x"], "n": null, "u": 18446744073709551615,
                                    "f": 1.5, "two": {"x": 1, "y": 2}, "none": {}})");
  const JsonField top(json, "the text");
  const JsonField list = top.at("a");
  const JsonField first = list.at(std::size_t{0});
  EXPECT_EQ(first.at("b").integer(), 3);
  EXPECT_ERROR(first.at("b").text(), FileError, "the text.a[0].b: expected a text, got number");
  EXPECT_ERROR(first.at("b").boolean(), FileError, "the text.a[0].b: expected true or false, got");
  EXPECT_ERROR(first.at("c"), FileError, "the text.a[0]: expected a member 'c', got none");
  EXPECT_ERROR(list.at("c"), FileError, "the text.a: expected an object, got array");
  EXPECT_ERROR(list.at(2), FileError, "the text.a: expected at least 3 elements, got 2");
  EXPECT_ERROR(list.at(1).integer(), FileError, "the text.a[1]: expected a whole number, got str");
  EXPECT_ERROR(list.at(1).number(), FileError, "the text.a[1]: expected a number, got string");
  EXPECT_ERROR(top.at("f").integer(), FileError, "the text.f: expected a whole number");
  EXPECT_ERROR(top.at("u").integer(), FileError, "the text.u: expected a whole number");
  EXPECT_ERROR(top.at(std::size_t{0}), FileError, "the text: expected a list, got object");
  EXPECT_ERROR(top.at("f").for_each([](const JsonField&) {}), FileError, "the text.f: expected a");
  EXPECT_ERROR(top.at("a").for_each_member([](const std::string&, const JsonField&) {}), FileError,
               "the text.a: expected an object, got array");
  EXPECT_ERROR(top.at("two").only_key(), FileError, "the text.two: expected one member, got 2");
  EXPECT_ERROR(top.at("none").only_key(), FileError, "the text.none: expected one member, got 0");
  EXPECT_ERROR(top.at("a").only_key(), FileError, "the text.a: expected an object, got array");
}

TEST(JsonField, NullCountsAsAbsent) {
  const Json json = Json::parse(R"({"n": null, "a": 1})");
  const JsonField top(json, "t");
  EXPECT_FALSE(top.has("n"));
  EXPECT_TRUE(top.has("a"));
  EXPECT_FALSE(top.has("b"));
  EXPECT_FALSE(top.at("a").has("b"));
  EXPECT_TRUE(top.at("n").is_null());
}

TEST(JsonField, ReadsNumbersThatJsonHasNotGot) {
  const Json json = Json::parse(R"(["NaN", "Infinity", "-Infinity", 2, "nan"])");
  const JsonField top(json, "t");
  EXPECT_TRUE(std::isnan(top.at(std::size_t{0}).number()));
  EXPECT_EQ(top.at(1).number(), INFINITY);
  EXPECT_EQ(top.at(2).number(), -INFINITY);
  EXPECT_EQ(top.at(3).number(), 2);
  EXPECT_ERROR(top.at(4).number(), FileError, "t[4]: expected a number, got string");
}

TEST(ParseJson, IsWhatIsWritten) {
  const std::string text = R"({"a":[1,-2,2.5,"x\n\u0001",null,true,[],{}],"b":{"c":{"d":[[]]}}})";
  EXPECT_EQ(parse_json(text, "t"), Json::parse(text));
  EXPECT_EQ(parse_json("3", "t"), 3);
  EXPECT_EQ(parse_json("[]", "t"), Json::array());
}

TEST(ParseJson, HandsOutElementsAndKeepsTheRest) {
  std::vector<std::pair<std::string, std::string>> taken;
  auto take = [&](const std::string& key, const Json& value) {
    taken.emplace_back(key, value.dump());
  };
  const Json rest = parse_json(
      R"({"g": {"nodes": [{"x": [1, {"y": 2}]}, 5, []], "z": [7], "t": {"a": {"b": 1}, "c": null}},
          "nodes": [1]})",
      "t", {{{"g", "nodes"}, take}, {{"g", "t"}, take}});
  EXPECT_EQ(rest, Json::parse(R"({"g": {"nodes": [], "t": {}, "z": [7]}, "nodes": [1]})"));
  EXPECT_EQ(taken, (std::vector<std::pair<std::string, std::string>>{{"", R"({"x":[1,{"y":2}]})"},
                                                                     {"", "5"},
                                                                     {"", "[]"},
                                                                     {"a", R"({"b":1})"},
                                                                     {"c", "null"}}));
}

TEST(ParseJson, RefusesWhatIsNone) {
  for (const char* text : {"", "{", "[1,]", "{\"a\":}", "{\"a\":1", "nul", "[1]]", "{1:2}", "\"a",
                           "[1e999]", "\"\xff\"", "[\"\xc3(\"]", "\"\x01\"", "'a'"}) {
    EXPECT_ERROR(parse_json(text, "the text"), FileError, "the text is not JSON: ") << text;
  }
  EXPECT_ERROR(parse_json(R"(["a\u0000b"])", "t"), FileError, "t: a text has a zero byte in it");
  EXPECT_ERROR(parse_json(R"({"\u0000": 1})", "t"), FileError, "t: a text has a zero byte in it");
  EXPECT_ERROR(parse_json(R"({"a": {"b": 1, "b": 2}})", "t"), FileError,
               "t: the key 'b' appears twice in an object");
}

TEST(ParseJson, RefusesDeepNesting) {
  const std::string bottom = std::string(1000, '[') + std::string(1000, ']');
  EXPECT_EQ(parse_json(bottom, "t").size(), 1U);
  EXPECT_ERROR(parse_json("[" + bottom + "]", "t"), FileError, "t: nested deeper than 1000");
  EXPECT_ERROR(parse_json(std::string(10000000, '['), "t"), FileError, "nested deeper than 1000");
  std::string objects;
  for (int i = 0; i < 2000; ++i) objects += R"({"a":)";
  EXPECT_ERROR(parse_json(objects, "t"), FileError, "nested deeper than 1000");
}

}  // namespace
}  // namespace stagecraft::exported
