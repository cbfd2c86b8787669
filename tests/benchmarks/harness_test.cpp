#include "benchmarks/harness.h"

#include <array>
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "benchmarks/report.h"
#include "stagecraft/base/error.h"
#include "tests/support/expect_error.h"

namespace stagecraft::bench {
namespace {

TEST(Harness, SummarisesByMedianAndQuartiles) {
  const Sample odd = summarise({5, 1, 3, 2, 4});
  EXPECT_DOUBLE_EQ(odd.seconds, 3);
  EXPECT_DOUBLE_EQ(odd.spread, 1.0 / 3);
  EXPECT_DOUBLE_EQ(summarise({4, 2}).seconds, 3);
  EXPECT_DOUBLE_EQ(summarise({7}).spread, 0);
  // One wild round moves neither.
  EXPECT_DOUBLE_EQ(summarise({1, 1, 1, 1, 1000}).seconds, 1);
}

TEST(Harness, RefusesARowWithoutAGoalThatIsNotInformative) {
  std::array<char, 6> name{"bench"};
  std::array<char, 8> quick{"--quick"};
  std::array<char*, 2> argv{name.data(), quick.data()};
  Suite suite("test", 2, argv.data());
  const Timed nothing = [](int) { return 1.0; };
  EXPECT_ERROR(suite.compare("x", nothing, {{"other", nothing}}), ArgumentError,
               "x: the row against other has no goal and is not informative");
  EXPECT_NO_THROW(suite.compare("x", nothing, {{"other", nothing, std::nullopt, true}}));
  EXPECT_NO_THROW(suite.compare("x", nothing, {{"other", nothing, 0.5}}));
}

TEST(Harness, WritesRowsAsJsonAndAsATable) {
  const std::vector<Row> rows = {{"split", "ATen", {2e-6, 0.1}, {4e-6, 0.2}, 0.4},
                                 {"merge", "ATen", {2e-3, 0}, {4e-3, 0}}};
  const std::string folder = testing::TempDir() + "stagecraft_harness_test";
  std::ifstream file(write_json("demo", rows, {{"size", 3, "MB", 2.0}}, folder));
  const auto json = nlohmann::json::parse(file);
  EXPECT_EQ(json["name"], "demo");
  const auto& row = json["rows"][0];
  EXPECT_EQ(row["what"], "split");
  EXPECT_DOUBLE_EQ(row["ours"], 2);
  EXPECT_DOUBLE_EQ(row["reference"], 4);
  EXPECT_EQ(row["unit"], "us");
  EXPECT_DOUBLE_EQ(row["ratio"], 0.5);
  EXPECT_DOUBLE_EQ(row["goal"], 0.4);
  EXPECT_EQ(row["met"], false);
  EXPECT_EQ(row["informative"], false);
  EXPECT_TRUE(json["rows"][1]["goal"].is_null());
  EXPECT_EQ(json["rows"][1]["informative"], true);
  EXPECT_EQ(json["quantities"][0]["value"], 3);
  EXPECT_EQ(json["quantities"][0]["met"], false);
  std::filesystem::remove_all(folder);

  const std::string text = table("demo", rows);
  EXPECT_THAT(text, testing::HasSubstr("<= 0.40 MISSED"));
  EXPECT_THAT(text, testing::HasSubstr("informative"));
  EXPECT_THAT(text, testing::HasSubstr("2.00 ms"));
}

TEST(Harness, PrintsQuantitiesALineEach) {
  EXPECT_EQ(table({{"size", 3, "MB", 2.0}, {"time", 0.5, "s", 1.0}, {"speed", 7, "x"}}),
            "size           3 MB  <= 2 MISSED\n"
            "time         0.5 s  <= 1 met\n"
            "speed          7 x\n");
}

TEST(Harness, SaysWhenItCannotWrite) {
  EXPECT_ERROR(write_json("demo", {}, {}, "/dev/null/folder"), Error,
               "cannot write /dev/null/folder/demo.json");
}

}  // namespace
}  // namespace stagecraft::bench
