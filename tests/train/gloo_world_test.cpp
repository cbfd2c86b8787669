// Trainers on ranks that are processes: the same bits as on threads, replicas, and errors.

#include <chrono>
#include <unistd.h>

#include <gmock/gmock.h>

#include "tests/support/gloo_ranks.h"
#include "tests/train/world_cases.h"

namespace stagecraft {

namespace {

void check_on_processes(const WorldCase& c) {
  const auto ends = run_gloo_ranks(c.ranks(), {}, [&](Transport& transport) {
    Trainer trainer = prepare(c.setup).make(&transport, c.replicas);
    check_world(transport, c, std::move(trainer), train(c, prepare_threads(c).make()));
  });
  for (const auto& end : ends) EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
}

}  // namespace

TEST(TrainerProcesses, HaveTheBitsOfThreads) {
  for (const WorldCase& c : {world_case(4, "1F1B", 4), world_case(4, "Interleaved1F1B", 2),
                             world_case(4, "ZBVZeroBubble", 2), world_case(4, "DualPipeV", 2)}) {
    check_on_processes(c);
  }
}

TEST(TrainerProcesses, ReplicasTrainAsOnePipelineOnTheWholeBatch) {
  check_on_processes(world_case(2, "1F1B", 2, 2));
  WorldCase c = world_case(1, "1F1B", 1, 3);
  c.setup.sizes.dropout = 0.2;
  check_on_processes(c);
}

// All schedules, on 2 x 2 processes.
TEST(TrainerProcesses, ShardedReplicasHaveTheBitsOfWholeOnes) {
  for (WorldCase c : world_cases()) {
    if (*c.setup.options.ranks != 2) continue;
    c.replicas = 2;
    SCOPED_TRACE(to_string(c));
    const auto ends = run_gloo_ranks(4, {}, [&](Transport& transport) {
      std::vector<double> expected;
      std::vector<PreparedTrainer> models = prepare_many(c.setup, 4);
      for (const ShardKind kind : {ShardKind::kNone, ShardKind::kOptimizer, ShardKind::kGradients,
                                   ShardKind::kParameters}) {
        PreparedTrainer& own = models[static_cast<std::size_t>(kind)];
        own.options.shard = kind;
        Trainer trainer = own.make(&transport, 2);
        const std::vector<double> numbers = curve(trainer, 3);
        if (kind == ShardKind::kNone) expected = numbers;
        EXPECT_EQ(numbers, expected) << to_string(kind);
      }
    });
    for (const auto& end : ends) EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
  }
}

// 2 x 2 processes, which measure different times, agree on the lookahead.
TEST(TrainerProcesses, FitTheLookaheadTogether) {
  const WorldCase c = world_case(4, "Interleaved1F1B", 2, 2);
  const auto ends = run_gloo_ranks(4, {}, [&](Transport& transport) {
    std::vector<PreparedTrainer> models = prepare_many(c.setup, 2);
    const std::vector<double> expected = [&] {
      Trainer whole = models[0].make(&transport, 2);
      return curve(whole, 4);
    }();
    models[1].options.shard = ShardKind::kParameters;
    Trainer trainer = models[1].make(&transport, 2);
    std::vector<double> numbers = curve(trainer, 2);
    const MeasuredLookahead found = trainer.fit_unshard_lookahead();
    const std::vector<int64_t> own(found.lookahead.begin(), found.lookahead.end());
    for (const c10::IValue& other :
         transport.all_gather(own, Deadline::after(std::chrono::seconds(20)))) {
      EXPECT_EQ(other.toIntVector(), own);
    }
    const std::vector<double> later = curve(trainer, 4);
    numbers.insert(numbers.end(), later.begin(), later.end());
    EXPECT_EQ(numbers, expected);
  });
  for (const auto& end : ends) EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
}

TEST(TrainerProcesses, NameTheShardedReplicaWhoseProcessEnded) {
  WorldCase c = world_case(2, "1F1B", 2, 2);
  c.setup.options.shard = ShardKind::kParameters;
  const auto ends = run_gloo_ranks(c.ranks(), {}, [&](Transport& transport) {
    Trainer trainer = prepare(c.setup).make(&transport, 2);
    curve(trainer, 2);
    if (transport.rank() == Rank(2)) _exit(9);
    curve(trainer, 3);
  });
  for (const std::size_t rank : {0U, 1U, 3U}) {
    EXPECT_EQ(ends[rank].type, "PeerError") << ends[rank].message;
    EXPECT_THAT(ends[rank].message, testing::HasSubstr("rank 2: its process has ended"));
  }
}

TEST(TrainerProcesses, CheckpointsGoToThreads) {
  WorldCase c = world_case(4, "Interleaved1F1B", 2);
  c.setup.sizes.dropout = 0.2;
  const auto ends = run_gloo_ranks(c.ranks(), {}, [&](Transport& transport) {
    Trainer trainer = prepare(c.setup).make(&transport);
    curve(trainer, 2);
    const Checkpoint checkpoint = trainer.checkpoint();
    EXPECT_EQ(checkpoint.is_elsewhere, transport.rank() != Rank(0));
    if (!checkpoint.is_elsewhere) {
      Trainer threads = make_trainer(c.setup);
      threads.restore(checkpoint);
      Trainer whole = make_trainer(c.setup);
      curve(whole, 2);
      EXPECT_TRUE(same_bits(values_of(threads), values_of(whole)));
      EXPECT_EQ(curve(threads, 3), curve(whole, 3));
    }
    transport.barrier(Deadline::after(std::chrono::seconds(20)));
  });
  for (const auto& end : ends) EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
}

TEST(TrainerProcesses, NameTheRankWhoseProcessEnded) {
  const WorldCase c = world_case(2, "1F1B", 2);
  const auto ends = run_gloo_ranks(c.ranks(), {}, [&](Transport& transport) {
    Trainer trainer = prepare(c.setup).make(&transport);
    curve(trainer, 2);
    if (transport.rank() == Rank(1)) _exit(9);
    curve(trainer, 3);
  });
  EXPECT_EQ(ends[0].type, "PeerError") << ends[0].message;
  EXPECT_THAT(ends[0].message, testing::HasSubstr("rank 1: its process has ended"));
}

}  // namespace stagecraft
