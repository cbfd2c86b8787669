#include "stagecraft/transport/core/transfer_id.h"

#include <unordered_set>

#include <gtest/gtest.h>

namespace stagecraft {
namespace {

TEST(TransferId, SaysWhatItIs) {
  TransferId id{7, Direction::kForward, StageId(0), StageId(1), MicrobatchId(3)};
  EXPECT_EQ(to_string(id), "values of stage 0 for stage 1, microbatch 3, step 7");
  id.direction = Direction::kBackward;
  EXPECT_EQ(to_string(id), "gradients of stage 0 for stage 1, microbatch 3, step 7");
  id.direction = Direction::kResult;
  EXPECT_EQ(to_string(id), "results of stage 0 for stage 1, microbatch 3, step 7");
}

TEST(TransferId, HashesOfAPipelineDoNotCollide) {
  std::unordered_set<std::size_t> hashes;
  std::size_t ids = 0;
  for (uint64_t step = 0; step < 8; ++step) {
    for (const auto direction : {Direction::kForward, Direction::kBackward}) {
      for (int32_t stage = 0; stage < 16; ++stage) {
        for (int32_t microbatch = 0; microbatch < 64; ++microbatch, ++ids) {
          hashes.insert(std::hash<TransferId>{}(
              {step, direction, StageId(stage), StageId(stage + 1), MicrobatchId(microbatch)}));
        }
      }
    }
  }
  EXPECT_EQ(hashes.size(), ids);
}

}  // namespace
}  // namespace stagecraft
