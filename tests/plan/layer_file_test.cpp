#include <gtest/gtest.h>

#include "stagecraft/base/error.h"
#include "stagecraft/plan/plan_problem.h"
#include "stagecraft/sim/quantity.h"
#include "benchmarks/gpt48.h"

namespace stagecraft {
namespace {

std::string message_of(std::string_view text) {
  try {
    parse_layer_file(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(LayerFile, ReadsLayersRanksAndSizes) {
  const LayerFile file = parse_layer_file(R"({
    "C": 0.05, "BYTES": 10, "INPUT_BYTES": 1, "CAP": 6500,
    "layers": [{"name": "embedding", "F": 0.5, "I": 0.1, "W": 1.5, "MF": 20, "MW": 0, "WEIGHTS": 600},
               {"repeat": 48, "F": 10, "I": 10, "W": 7, "MF": 100, "MW": 43, "WEIGHTS": 300, "STATE": 100},
               {"name": "head", "F": 30, "I": 32, "W": 28, "MF": 220, "MI": 130, "RF": 25}],
    "ranks": [{"CAP": 9000, "SPEED": 2}, {}], "sizes": [1, 2.5]})");
  ASSERT_EQ(file.layers.size(), 50U);
  EXPECT_EQ(file.layers[0].name, "embedding");
  EXPECT_EQ(file.layers[7].fixed_memory(), 400);
  EXPECT_EQ(file.layers[7].cost.memory_freed_by_input, 57);
  EXPECT_EQ(file.layers[49].cost.memory_freed_by_weight, 90);
  EXPECT_EQ(file.layers[49].recompute, 25);
  EXPECT_EQ(file.layers[49].output_bytes, 10);
  EXPECT_EQ(file.link.latency, 0.05);
  EXPECT_EQ(file.memory, 6500);
  EXPECT_EQ(file.ranks[0].speed, 2);
  EXPECT_EQ(file.ranks[1].memory, std::nullopt);
  EXPECT_EQ(file.sizes, (std::vector<double>{1, 2.5}));
}

TEST(LayerFile, ReadsUnits) {
  const LayerFile file =
      parse_layer_file(R"({"layers": [{"F": "4.4ms", "MF": "1.5GiB", "WEIGHTS": "2GB"}]})");
  EXPECT_EQ(file.layers[0].cost.forward, 4.4);
  EXPECT_EQ(file.layers[0].cost.memory_forward, 1610612736.0);
  EXPECT_EQ(file.layers[0].weights, 2e9);
  EXPECT_EQ(file.units.time, "ms");
  EXPECT_TRUE(file.units.bytes);
  EXPECT_EQ(message_of(R"({"layers": [{"F": "4.4ms", "W": "3us"}]})"),
            "a cost file has one unit of time; this one has ms and us");
  EXPECT_EQ(parse_quantity("20us").unit, "us");
  EXPECT_THROW(parse_quantity("20 parsecs"), ArgumentError);
  EXPECT_THROW(parse_quantity("-1"), ArgumentError);
  EXPECT_THROW(parse_quantity("nan"), ArgumentError);
  EXPECT_EQ(format_bytes(224709837), "214.3 MiB");
}

TEST(LayerFile, ReadsWhatItWrites) {
  PlanProblem problem = gpt48(2, 4, 6500);
  problem.layers[3].recompute = 0.1 + 0.2;
  problem.layers[3].cost.backward = 16;
  problem.layers[3].peak_input = 7;
  LayerFile file{.layers = problem.layers,
                 .ranks = problem.ranks,
                 .link = problem.link,
                 .links = {{Rank(0), Rank(1), {2, 3.5}}},
                 .sizes = {1, 2, 1, 1.25},
                 .input_bytes = 1,
                 .input_gradient = false};
  for (const bool units : {false, true}) {
    if (units) file.units = {"ms", true};
    const LayerFile back = parse_layer_file(to_layer_file(file));
    EXPECT_EQ(back.layers, file.layers);
    EXPECT_EQ(back.ranks, file.ranks);
    EXPECT_EQ(back.links, file.links);
    EXPECT_EQ(back.sizes, file.sizes);
    EXPECT_EQ(back.input_bytes, file.input_bytes);
    EXPECT_EQ(back.input_gradient, file.input_gradient);
    EXPECT_EQ(back.units, file.units);
  }
}

TEST(LayerFile, NamesWhatIsWrong) {
  EXPECT_EQ(message_of("[]"), "a cost file is a JSON object");
  EXPECT_NE(message_of(R"({"F": 1})").find("no \"layers\""), std::string::npos);
  EXPECT_EQ(message_of(R"({"layers": []})"), "\"layers\" is empty");
  EXPECT_EQ(message_of(R"({"layers": [{"F": "x"}]})"),
            "\"layers\", entry 0, \"F\": expected a number, got \"x\"");
  EXPECT_EQ(message_of(R"({"layers": [{"Q": 1}]})"),
            "\"layers\", entry 0: a layer has no cost \"Q\"");
  EXPECT_NE(message_of(R"({"layers": [{"repeat": 513}]})").find("at most 512 layers"),
            std::string::npos);
  EXPECT_NE(message_of(R"({"layers": [{"repeat": 18446744073709551615}]})").find("at most 512"),
            std::string::npos);
  EXPECT_NE(message_of(R"({"layers": [{"repeat": -1}]})").find("whole number"), std::string::npos);
  EXPECT_NE(message_of(R"({"layers": [{}], "ranks": [{"X": 1}]})").find("CAP and SPEED"),
            std::string::npos);
  EXPECT_NE(message_of("{").find("line 1"), std::string::npos);
}

TEST(PlanProblem, RefusesByName) {
  const auto message = [](PlanProblem problem) -> std::string {
    try {
      check_problem(problem);
    } catch (const ArgumentError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(message(gpt48(8, 64)), "no error");
  PlanProblem problem = gpt48(8, 64);
  problem.layers[49].cost.forward = -1;
  EXPECT_EQ(message(problem),
            "layer 49 (\"head\"): F is -1; expected a finite number of at least 0");
  problem = gpt48(8, 64);
  problem.layers[3].state = std::numeric_limits<double>::quiet_NaN();
  EXPECT_NE(message(problem).find("layer 3: STATE"), std::string::npos);
  problem = gpt48(8, 64);
  problem.layers[3].cost.memory_freed_by_input = 1;
  EXPECT_NE(message(problem).find("memory must be free after W"), std::string::npos);
  problem = gpt48(8, 64);
  problem.sizes = {1, 2};
  EXPECT_EQ(message(problem), "there are 2 sizes for 64 microbatches");
  problem = gpt48(8, 64);
  problem.ranks[2].speed = 0;
  EXPECT_NE(message(problem).find("rank 2: SPEED"), std::string::npos);
}

}  // namespace
}  // namespace stagecraft
