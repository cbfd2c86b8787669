#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "tests/runtime/random_model.h"
#include "tests/runtime/random_stage.h"
#include "tests/support/pipeline_check.h"

// Models that a seed decides (random_model.h) train in the pipeline as they do in the cut loop and
// as the uncut model does.
//
//   SC_RANDOM_MODELS=10000 random_models_test    10000 seeds
//   SC_RANDOM_MODEL=123 random_models_test       that one, with a description; or the first of many

namespace stagecraft {
namespace {

uint64_t number_in(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// The first difference, or nothing.
std::string train(const RandomModel& random, bool counts_hooks = true) {
  CheckOptions options;
  options.zero_buffering = random.zero_buffering;
  if (random.is_regrouped) options.uncut_tolerance = random.is_double ? 1e-12 : 1e-5;
  if (counts_hooks) options.take_count = [&] { return random.hook_calls->exchange(0); };
  PipelineCheck check(random.model, random.source, options);
  if (random.evals_first) {
    check.pipeline().eval(random.make_batch(), {.outputs = OutputMode::kEach});
  }
  for (int i = 0; i < 2; ++i) {
    std::string found = check.step(random.make_batch, true);
    if (!found.empty()) return "step " + std::to_string(i) + ": " + found;
  }
  return {};
}

TEST(RandomModels, TrainAsWithoutThePipeline) {
  const uint64_t one = number_in("SC_RANDOM_MODEL", 0);
  const uint64_t first = one != 0 ? one : 1;
  const uint64_t count = number_in("SC_RANDOM_MODELS", one != 0 ? 1 : 300);
  std::map<std::string, int> features;
  int failed = 0;
  for (uint64_t seed = first; seed < first + count && failed < 10; ++seed) {
    std::string found;
    std::string title;
    try {
      const RandomModel random = make_random_model(seed);
      title = random.schedule + ", " + std::to_string(random.model.num_stages()) + " stages, " +
              std::to_string(random.microbatches) + " microbatches";
      if (count == 1) std::cout << random.text;
      for (const std::string& feature : random.features) ++features[feature];
      found = train(random);
    } catch (const std::exception& error) {
      found = std::string("threw ") + error.what();
    }
    if (found.empty()) continue;
    ADD_FAILURE() << "seed " << seed << " (SC_RANDOM_MODEL=" << seed << "), " << title << ": "
                  << found;
    ++failed;
  }
  if (one != 0 || failed > 0) return;

  // Nothing that the generator can do is rare.
  for (int op = 0; op < static_cast<int>(RandomOp::kLast); ++op) {
    EXPECT_GE(features[to_string(static_cast<RandomOp>(op))] * 20, static_cast<int>(count))
        << to_string(static_cast<RandomOp>(op));
  }
  for (int output = 0; output < static_cast<int>(RandomOutput::kLast); ++output) {
    EXPECT_GE(features[to_string(static_cast<RandomOutput>(output))] * 50, static_cast<int>(count))
        << to_string(static_cast<RandomOutput>(output));
  }
  for (int use = 0; use < static_cast<int>(RandomUse::kLast); ++use) {
    EXPECT_GE(features[to_string(static_cast<RandomUse>(use))] * 20, static_cast<int>(count))
        << to_string(static_cast<RandomUse>(use));
  }
  for (const char* feature :
       {"chain", "no chain", "skip", "connected by name", "empty stage", "frozen stage",
        "kwarg of a late stage", "model input with gradient", "input fed to two stages",
        "output without a reader", "rows differ", "regrouped", "not regrouped", "random order"}) {
    EXPECT_GE(features[feature] * 20, static_cast<int>(count)) << feature;
  }
  for (const auto& [feature, times] : features) std::cout << times << "  " << feature << "\n";
}

// Some of the stages keep nothing of their forward and run it again: the same bits. Not where a
// stage changes its arguments.
TEST(RandomModels, TrainAlikeWhenStagesRunForwardAgain) {
  const uint64_t count = number_in("SC_RANDOM_MODELS", 300) / 2;
  uint64_t tried = 0;
  for (uint64_t seed = 1; seed <= count; ++seed) {
    RandomModel random = make_random_model(seed);
    if (random.features.contains(to_string(RandomUse::kInPlace))) continue;
    ++tried;
    random.model.options.resize(random.model.bodies.size());
    for (std::size_t s = 0; s < random.model.bodies.size(); ++s) {
      random.model.options[s].recompute = ((seed * 2654435761U >> 7) >> s & 1) != 0;
    }
    std::string found;
    try {
      // Outputs that have no gradient count as if they had one, so that there are more calls.
      found = train(random, false);
    } catch (const std::exception& error) {
      found = std::string("threw ") + error.what();
    }
    EXPECT_EQ(found, "") << "seed " << seed << ", " << random.schedule;
  }
  EXPECT_GT(tried, count / 6);
}

}  // namespace
}  // namespace stagecraft
