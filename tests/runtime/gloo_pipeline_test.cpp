// Pipelines over processes: the same bits as over threads, and errors that name who is gone.

#include <chrono>
#include <string>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>

#include "stagecraft/base/error.h"
#include "stagecraft/runtime/runner.h"
#include "tests/runtime/harness.h"
#include "tests/runtime/process_pipeline.h"
#include "tests/runtime/replica_cases.h"
#include "tests/runtime/retry_cases.h"
#include "tests/runtime/shard_cases.h"
#include "tests/support/gloo_ranks.h"

namespace stagecraft {
namespace {

TEST(GlooPipeline, EverySchedulesBitsAreThoseOfThreads) {
  for (const int32_t ranks : {2, 4}) {
    const auto ends = run_gloo_ranks(ranks, {}, expect_all_schedules_bits);
    for (const auto& end : ends) EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
  }
}

TEST(GlooPipeline, TheTransparencyMatrixToo) {
  for (const int32_t ranks : {2, 4}) {
    const auto ends = run_gloo_ranks(ranks, {}, expect_matrix_bits);
    for (const auto& end : ends) EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
  }
}

TEST(GlooPipeline, SkipConnectionsAndSentWeightsToo) {
  for (const auto& shape : skip_cases()) {
    SCOPED_TRACE(to_string(shape));
    const auto ends = run_gloo_ranks(shape.ranks, {}, [&](Transport& transport) {
      expect_bits_of_threads(transport, shape, [&] { return skip_model(shape); });
    });
    for (const auto& end : ends) EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
  }
}

TEST(GlooPipeline, AStepThatDiffersIsTheSameErrorOnEveryRank) {
  const auto ends = run_gloo_ranks(3, {}, [&](Transport& transport) {
    const ScheduleSource source = ScheduleSource::named("1F1B", 3);
    const TestModel model = chain_model(3, 6);
    Runner runner(
        transport, stages_on(model, source.placement(), transport.rank()),
        runner_options(model, {.source = source, .timeout = std::chrono::seconds(20), .seed = 7}));
    const auto step = [&](int32_t microbatches) {
      runner.step(
          part_of(random_batch(microbatches, 12, 6, 0), source.placement(), transport.rank()),
          {.microbatches = microbatches});
    };
    EXPECT_THAT([&] { step(transport.rank() == Rank(1) ? 6 : 4); },
                testing::ThrowsMessage<MetadataError>(testing::HasSubstr(
                    "the number of microbatches is 4 on ranks 0 and 2, 6 on rank 1")));
    step(4);  // and nothing is the worse for it
  });
  for (const auto& end : ends) EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
}

TEST(GlooPipeline, ReplicasToo) {
  for (const ScheduleCase& schedule :
       {ScheduleCase{"1F1B", 2, 1, 4}, ScheduleCase{"ZBVZeroBubble", 2, 2, 4}}) {
    const auto ends = run_gloo_ranks(4, {}, [&](Transport& transport) {
      for (const bool reduces_once : {false, true}) {
        check_replicas(transport, {.schedule = schedule,
                                   .make_model = [&] { return chain_model(schedule.stages(), 6); },
                                   .reduces_once = reduces_once});
      }
    });
    for (const auto& end : ends) EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
  }
}

TEST(GlooPipeline, ShardedReplicasToo) {
  const auto ends = run_gloo_ranks(4, {}, [&](Transport& transport) {
    for (const ScheduleCase& schedule : training_cases(2)) {
      check_kinds(transport, {.schedule = schedule,
                              .make_model = [&] { return chain_model(schedule.stages(), 20); }});
    }
  });
  for (const auto& end : ends) EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
}

TEST(GlooPipeline, AKilledReplicaOfShardsIsNamed) {
  const auto ends = run_gloo_ranks(4, {}, [&](Transport& transport) {
    ShardCase c{.schedule = {"Interleaved1F1B", 2, 2, 4},
                .make_model = [] { return chain_model(4, 20); }};
    c.before_step = [&](Runner&, Transport&, int32_t step) {
      if (step == 2 && transport.rank() == Rank(3)) _exit(9);
    };
    train_sharded(transport, c, ShardKind::kParameters);
  });
  for (int32_t rank = 0; rank < 3; ++rank) {
    const auto& end = ends[static_cast<std::size_t>(rank)];
    EXPECT_EQ(end.type, "PeerError") << end.message;
    EXPECT_THAT(end.message, testing::HasSubstr("rank 3: its process has ended"));
  }
}

TEST(GlooPipeline, SendsThatNoRankTakesDoNotHoldUpTheError) {
  for (const char* schedule : {"GPipe", "1F1B"}) {
    const Signal posted;
    const auto ends = run_gloo_ranks(
        2, {}, [&](Transport& transport) { check_untaken_sends(transport, schedule, posted); });
    for (const auto& end : ends) EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
  }
}

TEST(GlooPipeline, AnEarlyRetryNeverMixesTwoBatches) {
  for (const char* schedule : {"GPipe", "1F1B"}) {
    const Signal entered;
    const Signal retried;
    const auto ends = run_gloo_ranks(2, {}, [&](Transport& transport) {
      check_early_retry(transport, schedule, entered, retried);
    });
    for (const auto& end : ends) EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
  }
}

TEST(GlooPipeline, AStepNamesTheRankWhoseProcessEnded) {
  const ScheduleCase shape{"1F1B", 3, 1, 6};
  const auto source = shape.source();
  const GlooRanks world(shape.ranks);
  Processes processes(shape.ranks, [&](int32_t i) {
    const auto joined = join_gloo(world.options(i));
    const auto model = chain_model(shape.stages(), 6);
    Runner runner(
        *joined, stages_on(model, source.placement(), Rank(i)),
        runner_options(model, {.source = source, .timeout = std::chrono::seconds(20), .seed = 7}));
    const auto step = [&] {
      runner.step(part_of(process_batch(shape, 0), source.placement(), Rank(i)),
                  {.microbatches = shape.microbatches});
    };
    step();
    if (i == 1) _exit(9);
    step();
  });
  const auto ends = processes.wait();
  for (const std::size_t i : {0, 2}) {
    EXPECT_EQ(ends[i].type, "PeerError") << ends[i].message;
    EXPECT_THAT(ends[i].message, testing::HasSubstr("rank 1: its process has ended"));
    EXPECT_LT(ends[i].seconds, 60);
  }
}

}  // namespace
}  // namespace stagecraft
