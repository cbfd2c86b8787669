#include "benchmarks/harness.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <utility>

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

// Runs its turns on a clock of its own: each takes the next of these times for an iteration, the
// last for ever.
Timed scripted(std::vector<double> times) {
  return [times = std::move(times), next = std::size_t{0}](int iterations) mutable {
    const double seconds = times[std::min(next, times.size() - 1)];
    ++next;
    return seconds * iterations;
  };
}

nlohmann::json finished(const Suite& suite, const std::string& folder) {
  suite.finish();
  std::ifstream file(folder + "/test.json");
  return nlohmann::json::parse(file);
}

TEST(Harness, MeasuresOursAgainInEveryRound) {
  const std::string folder = testing::TempDir() + "stagecraft_harness_again";
  std::string name = "bench";
  std::string rounds = "--rounds";
  std::string two = "2";
  std::string out = "--out";
  std::string to = folder;
  std::array<char*, 5> argv{name.data(), rounds.data(), two.data(), out.data(), to.data()};
  Suite suite("test", 5, argv.data());
  // Two turns calibrate; then ours, other, ours and, turned round, ours, other, ours.
  suite.compare("x", scripted({1, 1, 1.0, 1.5, 2.0, 1.0}), {{"other", scripted({2}), 0.5}}, 4);
  // As above, with ten times the rounds: all but the first are the same.
  suite.compare_overhead("over", scripted({3e-2}), scripted({1e-2}), 1000, 30);
  const auto json = finished(suite, folder);
  std::filesystem::remove_all(folder);

  const auto& row = json["rows"][0];
  EXPECT_DOUBLE_EQ(row["ours"], 1.25e6 / 4);
  EXPECT_DOUBLE_EQ(row["reference"], 2e6 / 4);
  // Again by first: 1.5 / 1 and, since the second round runs backwards, 2 / 1.
  EXPECT_DOUBLE_EQ(row["noise"], 0.125);
  EXPECT_NEAR(json["quantities"][0]["value"], 20, 1e-9);
  EXPECT_EQ(json["quantities"][0]["met"], true);
  EXPECT_DOUBLE_EQ(json["quantities"][0]["noise"], 0);
}

TEST(Harness, WritesRowsAsJsonAndAsATable) {
  const std::vector<Row> rows = {{"split", "ATen", {2e-6, 0.1}, {4e-6, 0.2}, 0.4, 0.03},
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
  EXPECT_DOUBLE_EQ(row["noise"], 0.03);
  EXPECT_TRUE(json["rows"][1]["goal"].is_null());
  EXPECT_EQ(json["rows"][1]["informative"], true);
  EXPECT_EQ(json["quantities"][0]["value"], 3);
  EXPECT_EQ(json["quantities"][0]["met"], false);
  EXPECT_TRUE(json["quantities"][0]["noise"].is_null());
  std::filesystem::remove_all(folder);

  const std::string text = table("demo", rows);
  EXPECT_THAT(text, testing::HasSubstr("+-3%  <= 0.40 MISSED"));
  EXPECT_THAT(text, testing::HasSubstr("informative"));
  EXPECT_THAT(text, testing::HasSubstr("2.00 ms"));
}

TEST(Harness, PrintsQuantitiesALineEach) {
  EXPECT_EQ(table({{"size", 3, "MB", 2.0}, {"time", 0.5, "s", 1.0, 0.021}, {"speed", 7, "x"}}),
            "size           3 MB  <= 2 MISSED\n"
            "time         0.5 s  A/A +-0.021  <= 1 met\n"
            "speed          7 x\n");
}

TEST(Harness, SaysWhenItCannotWrite) {
  EXPECT_ERROR(write_json("demo", {}, {}, "/dev/null/folder"), Error,
               "cannot write /dev/null/folder/demo.json");
}

}  // namespace
}  // namespace stagecraft::bench
