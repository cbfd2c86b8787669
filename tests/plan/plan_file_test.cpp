#include "stagecraft/plan/plan_file.h"

#include <string>

#include <gtest/gtest.h>

#include "stagecraft/base/error.h"
#include "stagecraft/schedule/load.h"
#include "benchmarks/gpt48.h"
#include "tests/schedule/random.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

const SavedPlan& saved_plan() {
  static const SavedPlan plan = [] {
    PlanProblem problem = gpt48(2, 3, 15000);
    problem.layers.resize(8);
    problem.units = {"ms", false};
    PlanOptions options;
    options.rounds = 2;
    const Plan made = make_plan(problem, options);
    PlannedModel model{.graph = graph_checksum("graph")};
    for (const std::string& name : made.boundary_names())
      model.split_points.push_back("at " + name);
    return to_saved(made, model);
  }();
  return plan;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(PlanFile, ReadsWhatItWrites) {
  const SavedPlan& plan = saved_plan();
  const std::string text = to_plan_file(plan);
  EXPECT_TRUE(looks_like_plan(text));
  const SavedPlan back = parse_plan_file(text);
  EXPECT_EQ(back.problem, plan.problem);
  EXPECT_EQ(back.choice, plan.choice);
  EXPECT_EQ(back.schedule, plan.schedule);
  EXPECT_EQ(back.predicted, plan.predicted);
  EXPECT_EQ(back.peaks, plan.peaks);
  EXPECT_EQ(back.bound, plan.bound);
  EXPECT_EQ(back.model, plan.model);
  EXPECT_EQ(to_plan_file(back), text);
}

TEST(PlanFile, IsReadAsASchedule) {
  EXPECT_EQ(parse_schedule(to_plan_file(saved_plan())), saved_plan().schedule);
}

TEST(PlanFile, RefusesOtherModelsAndRanks) {
  const SavedPlan& plan = saved_plan();
  EXPECT_NO_THROW(require_plan_for(plan, 2, graph_checksum("graph")));
  EXPECT_NO_THROW(require_plan_for(plan, 2));
  EXPECT_ERROR(require_plan_for(plan, 3), ArgumentError,
               "the plan is for 2 ranks, but there are 3");
  EXPECT_ERROR(require_plan_for(plan, 2, graph_checksum("other")), ArgumentError,
               "made for a different model");
}

TEST(PlanFile, RefusesByName) {
  const std::string text = to_plan_file(saved_plan());
  EXPECT_ERROR(parse_plan_file(replaced(text, "\"stagecraft_plan\":1", "\"stagecraft_plan\":2")),
               ArgumentError, "this reads version 1, got 2");
  EXPECT_ERROR(parse_plan_file("{\"stagecraft\": 1}"), ArgumentError, "not a plan");
  EXPECT_THROW(parse_plan_file(text.substr(0, text.size() / 2)), ParseError);
  EXPECT_ERROR(parse_plan_file(replaced(text, "\"ranks\":2", "\"ranks\":3")), ArgumentError,
               "\"ranks\" is 3, but \"costs\" has 2");
  EXPECT_ERROR(parse_plan_file(replaced(text, "\"microbatches\":3", "\"microbatches\":4")),
               ArgumentError, "microbatches");
  EXPECT_ERROR(parse_plan_file(replaced(text, "\"begins_at_layer\":0", "\"begins_at_layer\":1")),
               ArgumentError, "the first stage begins");
  EXPECT_ERROR(parse_plan_file(replaced(text, "\"F\":10", "\"F\":11")), ArgumentError,
               "\"time\" is");
  EXPECT_ERROR(parse_plan_file(replaced(text, "\"0F1\"", "\"0F0\"")), ArgumentError,
               "cannot be run");
  EXPECT_ERROR(parse_plan_file(replaced(text, "\"objective\":\"step\"", "\"objective\":\"x\"")),
               ArgumentError, "\"objective\"");
  EXPECT_ERROR(parse_plan_file(replaced(text, "\"peaks\":[", "\"peaks\":[1,")), ArgumentError,
               "\"peaks\"");
}

// A file can come from anywhere: a reader gives one of our errors, or a plan.
TEST(PlanFile, SurvivesMutations) {
  const std::string original = to_plan_file(saved_plan());
  Random random(25);
  int accepted = 0;
  const std::string alphabet = "{}[]\",:0123456789-.eE truefalsn\\\x01\xff";
  for (int round = 0; round < 20000; ++round) {
    std::string text = original;
    const std::size_t edits = 1 + random.below(4);
    for (std::size_t e = 0; e < edits && !text.empty(); ++e) {
      const std::size_t at = random.below(text.size());
      switch (random.below(5)) {
        case 0:
          text[at] = alphabet[random.below(alphabet.size())];
          break;
        case 1:
          text.erase(at, 1 + random.below(8));
          break;
        case 2:
          text.insert(at, 1, alphabet[random.below(alphabet.size())]);
          break;
        case 3:
          text.insert(at, text.substr(random.below(text.size()), random.below(40)));
          break;
        default:
          text.resize(at);
          break;
      }
    }
    try {
      parse_plan_file(text);
      ++accepted;
    } catch (const Error&) {
    } catch (const std::exception& error) {
      FAIL() << "round " << round << ": " << error.what() << "\n" << text;
    }
  }
  EXPECT_LT(accepted, 10000);
}

}  // namespace
}  // namespace stagecraft
