// Pipelines over NCCL, for which a fake stands that takes the host's memory for a device: the same
// bits as over threads.

#include <cstdint>

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

// Both directions of every pair of neighbours are there, though an evaluation sends in one only.
TEST(NcclPipeline, NeighboursAreConnectedBeforeTheFirstStep) {
  use_fake_nccl();
  const ScheduleCase shape{"1F1B", 3, 1, 3};
  const auto ends = run_nccl_ranks(3, c10::kCPU, {}, [&](Transport& transport) {
    const TestModel model = chain_model(shape.stages(), 6);
    const auto source = shape.source();
    Runner runner(transport, stages_on(model, source.placement(), transport.rank()),
                  runner_options(model, {.source = source, .seed = 1}));
    const auto batch = process_batch(shape, 0);
    runner.eval(part_of(batch, source.placement(), transport.rank()),
                {.microbatches = shape.microbatches});
    EXPECT_EQ(num_communicators(), transport.rank() == Rank(1) ? 4 : 2);
  });
  for (const auto& end : ends) EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
}

}  // namespace
}  // namespace stagecraft
