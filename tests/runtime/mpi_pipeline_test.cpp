// Pipelines over MPI: the same bits as over threads.

#include <gtest/gtest.h>

#include "tests/runtime/process_pipeline.h"
#include "tests/runtime/shard_cases.h"
#include "tests/support/mpi_ranks.h"

namespace stagecraft {
namespace {

void expect_same_bits(const ScheduleCase& shape, const std::function<TestModel()>& make) {
  SCOPED_TRACE(to_string(shape));
  MpiRanks::run(shape.ranks, {},
                [&](Transport& transport) { expect_bits_of_threads(transport, shape, make); });
}

// On as many ranks as there are processes.
TEST(MpiPipeline, EverySchedulesBitsAreThoseOfThreads) {
  MpiRanks::run(MpiRanks::job_size(), {}, expect_all_schedules_bits);
}

TEST(MpiPipeline, TheTransparencyMatrixToo) {
  MpiRanks::run(MpiRanks::job_size(), {}, expect_matrix_bits);
}

TEST(MpiPipeline, SkipConnectionsAndSentWeightsToo) {
  for (const auto& shape : skip_cases()) {
    if (shape.ranks != MpiRanks::job_size()) continue;
    expect_same_bits(shape, [&] { return skip_model(shape); });
  }
}

TEST(MpiPipeline, ShardedReplicasToo) {
  const ScheduleCase shape{"Interleaved1F1B", MpiRanks::job_size() / 2, 2, 4};
  MpiRanks::run(MpiRanks::job_size(), {}, [&](Transport& transport) {
    check_kinds(transport,
                {.schedule = shape, .make_model = [&] { return chain_model(shape.stages(), 20); }});
  });
}

}  // namespace
}  // namespace stagecraft
