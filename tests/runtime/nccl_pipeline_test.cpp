// Pipelines over NCCL, for which a fake stands that takes the host's memory for a device: the same
// bits as over threads.

#include <cstdint>
#include <cstdlib>

#include <gtest/gtest.h>

#include "tests/runtime/harness.h"
#include "tests/runtime/process_pipeline.h"
#include "tests/support/nccl_ranks.h"

namespace stagecraft {
namespace {

TEST(NcclPipeline, EverySchedulesBitsAreThoseOfThreads) {
  use_fake_nccl();
  for (const int32_t ranks : {2, 3, 4}) {
    const auto ends = run_nccl_ranks(ranks, c10::kCPU, {}, expect_all_schedules_bits);
    for (const auto& end : ends) EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
  }
}

// Every communicator waits for the transfers of all others, as CUDA may make it.
TEST(NcclPipeline, RanksThatConnectWaitForNothingThatWaitsForThem) {
  use_fake_nccl();
  setenv("SC_FAKE_NCCL", "wait", 1);
  const auto ends = run_nccl_ranks(4, c10::kCPU, {}, expect_all_schedules_bits);
  unsetenv("SC_FAKE_NCCL");
  for (const auto& end : ends) EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
}

}  // namespace
}  // namespace stagecraft
