// A training that is resumed continues as if it had never stopped, however the model is split
// then.

#include <filesystem>
#include <string>
#include <unistd.h>

#include <ATen/ops/zeros.h>

#include "stagecraft/base/error.h"
#include "stagecraft/train/checkpoint.h"
#include "tests/support/expect_error.h"
#include "tests/train/small_gpt.h"

namespace stagecraft {

namespace {

TrainerSetup resume_setup_of(int32_t stages, double dropout = 0.2) {
  TrainerSetup setup;
  setup.stages = stages;
  setup.options.ranks = stages;
  setup.sizes.dropout = dropout;
  return setup;
}

}  // namespace

TEST(Resume, GoesOnAsIfNothingHadHappened) {
  const std::string folder = testing::TempDir() + "resume_test_" + std::to_string(::getpid());
  Trainer whole = make_trainer(resume_setup_of(2));
  std::vector<double> expected = curve(whole, 7);
  const auto values = values_of(whole);
  expected.erase(expected.begin(), expected.begin() + 6);
  for (const int32_t before : {1, 2, 4}) {
    Trainer first = make_trainer(resume_setup_of(before));
    curve(first, 3);
    std::filesystem::remove_all(folder);
    save_checkpoint(folder, first.checkpoint());
    EXPECT_EQ(load_checkpoint(folder).stages.size(), static_cast<std::size_t>(before));
    for (const int32_t after : {1, 2, 4}) {
      Trainer second = make_trainer(resume_setup_of(after));
      second.restore(load_checkpoint(folder));
      EXPECT_EQ(second.steps(), 3);
      EXPECT_EQ(curve(second, 7), expected) << before << " stages, then " << after;
      EXPECT_TRUE(same_bits(values_of(second), values));
    }
  }
  std::filesystem::remove_all(folder);
}

TEST(Resume, GoesOnInTheMiddleOfAccumulation) {
  TrainerSetup setup = resume_setup_of(2);
  setup.options.accumulate = 2;
  Trainer whole = make_trainer(setup);
  std::vector<double> expected = curve(whole, 4);
  Trainer second = make_trainer(setup);
  Trainer first = make_trainer(setup);
  curve(first, 2);
  second.restore(first.checkpoint());
  expected.erase(expected.begin(), expected.begin() + 4);
  EXPECT_EQ(curve(second, 4), expected);
}

TEST(Resume, RefusesTheCheckpointOfAnotherModel) {
  Trainer trainer = make_trainer(resume_setup_of(2));
  const auto before = values_of(trainer);
  TrainerSetup wider = resume_setup_of(2);
  wider.sizes.width = 32;
  EXPECT_ERROR(trainer.restore(make_trainer(wider).checkpoint()), MetadataError, "value of ");
  TrainerSetup deeper = resume_setup_of(2);
  deeper.sizes.layers = 5;
  EXPECT_ERROR(trainer.restore(make_trainer(deeper).checkpoint()), MetadataError,
               "the checkpoint has blocks.4.");
  TrainerSetup shallower = resume_setup_of(2);
  shallower.sizes.layers = 3;
  EXPECT_ERROR(trainer.restore(make_trainer(shallower).checkpoint()), MetadataError,
               "the checkpoint has no value of blocks.3.");
  Checkpoint other_seed = trainer.checkpoint();
  other_seed.seed = 4;
  EXPECT_ERROR(trainer.restore(other_seed), MetadataError,
               "the checkpoint was written with seed 4, but");
  Checkpoint half = trainer.checkpoint();
  half.stages[1].erase("average_square");
  EXPECT_ERROR(trainer.restore(half), MetadataError, "has no average of squares of ");
  EXPECT_TRUE(same_bits(values_of(trainer), before));
}

}  // namespace stagecraft
