// Trainers on ranks that are threads of a world.

#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <unistd.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "stagecraft/base/error.h"
#include "stagecraft/graph/graph_text.h"
#include "stagecraft/report/save_report.h"
#include "stagecraft/train/checkpoint.h"
#include "stagecraft/transport/local/local_world.h"
#include "tests/support/expect_error.h"
#include "tests/train/world_cases.h"

namespace stagecraft {

namespace {

/// Each rank has a model of its own, made beforehand.
void on_ranks(const WorldCase& c,
              const std::function<void(Transport&, const PreparedTrainer&)>& body) {
  std::vector<PreparedTrainer> models;
  for (int32_t r = 0; r < c.ranks(); ++r) models.push_back(prepare(c.setup));
  LocalWorld world(c.ranks());
  world.run([&](Transport& transport) {
    body(transport, models[static_cast<std::size_t>(transport.rank().value())]);
  });
}

void check_on_threads(const WorldCase& c) {
  const Trained expected = train(c, prepare_threads(c).make());
  on_ranks(c, [&](Transport& transport, const PreparedTrainer& own) {
    check_world(transport, c, own.make(&transport, c.replicas), expected);
  });
}

/// What every rank threw, by rank.
template <typename E>
std::vector<std::string> errors_of(LocalWorld& world, const std::function<void(Transport&)>& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(world.num_ranks()));
  world.run([&](Transport& transport) {
    try {
      body(transport);
    } catch (const E& error) {
      errors[static_cast<std::size_t>(transport.rank().value())] = error.what();
    }
  });
  return errors;
}

}  // namespace

TEST(TrainerWorld, HasTheBitsOfThreads) {
  for (const WorldCase& c : world_cases()) check_on_threads(c);
}

TEST(TrainerWorld, HasThemForOtherModelsToo) {
  for (const bool is_learned : {false, true}) {
    WorldCase c = world_case(4, "ZBVZeroBubble", 2);
    c.setup.sizes.positions = is_learned ? Positions::kLearned : Positions::kRotary;
    c.setup.sizes.is_tied = !is_learned;
    c.setup.sizes.dropout = 0.2;
    c.setup.use.autocast = is_learned ? std::nullopt : std::optional(at::kBFloat16);
    c.setup.options.recompute = {0, 2};
    c.setup.options.microbatches = 4;
    c.setup.options.accumulate = 2;
    check_on_threads(c);
  }
}

TEST(TrainerWorld, ReplicasTrainAsOnePipelineOnTheWholeBatch) {
  check_on_threads(world_case(1, "1F1B", 1, 2));
  check_on_threads(world_case(2, "1F1B", 2, 2));
  check_on_threads(world_case(1, "1F1B", 1, 3));
  WorldCase c = world_case(4, "ZBVZeroBubble", 2, 2);
  c.setup.sizes.dropout = 0.2;
  c.setup.options.accumulate = 2;
  check_on_threads(c);
}

TEST(TrainerWorld, CopiesOfATiedWeightStayTheSame) {
  const Split split{.points = {}, .policy = equal_cost(2)};
  const auto make = [&] { return Pipe(Gpt(small_sizes(), 7).cut(split).graph(), split); };
  const TrainerOptions options{.schedule = "1F1B", .ranks = 2, .seed = 3};
  Trainer threads(make(), cross_entropy, options);
  const std::vector<double> expected = curve(threads, 3);
  const std::vector<Pipe> pipes = {make(), make()};
  LocalWorld world(2);
  std::vector<at::Tensor> copies(2);
  world.run([&](Transport& transport) {
    const auto r = static_cast<std::size_t>(transport.rank().value());
    TrainerOptions own = options;
    own.transport = &transport;
    Trainer trainer(pipes[r], cross_entropy, own);
    EXPECT_EQ(curve(trainer, 3), expected);
    for (const ModelState& state : trainer.states()) {
      if (state.is_parameter && state.copies.size() == 2) copies[r] = state.copies[r];
    }
  });
  ASSERT_TRUE(copies[0].defined() && copies[1].defined());
  EXPECT_TRUE(copies[0].equal(copies[1]));
}

TEST(TrainerWorld, CheckpointsGoFromRanksToThreadsAndBack) {
  const std::string folder = testing::TempDir() + "world_test_" + std::to_string(::getpid());
  std::filesystem::remove_all(folder);
  WorldCase c = world_case(4, "ZBVZeroBubble", 2);
  c.setup.sizes.dropout = 0.2;
  Trainer whole = make_trainer(c.setup);
  std::vector<double> expected = curve(whole, 6);
  on_ranks(c, [&](Transport& transport, const PreparedTrainer& own) {
    Trainer trainer = own.make(&transport);
    curve(trainer, 2);
    const Checkpoint checkpoint = trainer.checkpoint(R"({"rows": 3})");
    EXPECT_EQ(checkpoint.is_elsewhere, transport.rank() != Rank(0));
    EXPECT_EQ(save_checkpoint(folder, checkpoint), folder + "/step-00000002");
    if (checkpoint.is_elsewhere) {
      EXPECT_ERROR(trainer.restore(checkpoint), ArgumentError,
                   "tensors of this checkpoint are on rank 0");
    }
  });
  TrainerSetup other = c.setup;
  other.stages = 2;
  other.options.ranks = 2;
  other.options.schedule = "1F1B";
  Trainer threads = make_trainer(other);
  threads.restore(load_checkpoint(folder));
  EXPECT_EQ(curve(threads, 4), std::vector<double>(expected.begin() + 4, expected.begin() + 8));
  std::filesystem::remove_all(folder);
  save_checkpoint(folder, threads.checkpoint());
  WorldCase three = world_case(3, "1F1B", 3);
  three.setup.sizes.dropout = 0.2;
  on_ranks(three, [&](Transport& transport, const PreparedTrainer& own) {
    Trainer trainer = own.make(&transport);
    trainer.restore(load_checkpoint(folder));
    EXPECT_EQ(curve(trainer, 6), std::vector<double>(expected.begin() + 8, expected.end()));
    trainer.gather_weights();
    if (transport.rank() == Rank(0)) {
      EXPECT_TRUE(same_bits(values_of(trainer), values_of(whole)));
    }
  });
  std::filesystem::remove_all(folder);
}

TEST(TrainerWorld, ACheckpointOfReplicasGoesOnInOnePipeline) {
  const WorldCase c = world_case(2, "1F1B", 2, 2);
  Checkpoint saved;
  std::vector<double> expected;
  on_ranks(c, [&](Transport& transport, const PreparedTrainer& own) {
    Trainer trainer = own.make(&transport, 2);
    curve(trainer, 2);
    Checkpoint checkpoint = trainer.checkpoint();
    if (transport.rank() == Rank(0)) {
      for (auto& stage : checkpoint.stages) {
        for (auto& [section, tensors] : stage) {
          for (auto& [name, tensor] : tensors) tensor = tensor.detach().clone();
        }
      }
      saved = std::move(checkpoint);
    }
    const std::vector<double> more = curve(trainer, 4);
    if (transport.rank() == Rank(0)) expected = more;
  });
  Trainer one = prepare_threads(c).make();
  one.restore(saved);
  const std::vector<double> got = curve(one, 4);
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-5);
}

TEST(TrainerWorld, EveryRankStaysAsItWasWhenAStepFails) {
  WorldCase c = world_case(2, "1F1B", 2);
  c.setup.sizes.dropout = 0.2;
  Trainer threads = make_trainer(c.setup);
  const std::vector<double> expected = curve(threads, 4);
  on_ranks(c, [&](Transport& transport, const PreparedTrainer& own) {
    Trainer trainer = own.make(&transport);
    curve(trainer, 2);
    const auto before = own_values(trainer, c, transport);
    const std::pair batch = batch_of(2);
    const at::Tensor& inputs = batch.first;
    const at::Tensor& targets = batch.second;
    // An id that the embedding lacks, in a late microbatch. Only rank 0 reads it.
    at::Tensor bad = inputs.clone();
    bad[8][3] = 1000;
    EXPECT_ERROR(trainer.step({bad}, targets), Error, "0F3");
    EXPECT_EQ(trainer.steps(), 2);
    for (const auto& [name, value] : own_values(trainer, c, transport)) {
      EXPECT_TRUE(value.equal(before.at(name))) << name;
    }
    // Another call than the one that failed works at once.
    trainer.eval_loss({inputs}, targets);
    EXPECT_EQ(curve(trainer, 4), std::vector<double>(expected.begin() + 4, expected.end()));
  });
}

TEST(TrainerWorld, EveryRankHearsOfABatchThatOneCannotCut) {
  WorldCase c = world_case(2, "1F1B", 2);
  Trainer threads = make_trainer(c.setup);
  const std::vector<double> expected = curve(threads, 2);
  on_ranks(c, [&](Transport& transport, const PreparedTrainer& own) {
    Trainer trainer = own.make(&transport);
    curve(trainer, 1);
    const std::pair batch = batch_of(1);
    const at::Tensor& inputs = batch.first;
    const at::Tensor& targets = batch.second;
    const int64_t rows = transport.rank() == Rank(1) ? 3 : 9;
    EXPECT_ERROR(trainer.step({inputs.slice(0, 0, rows)}, targets.slice(0, 0, rows)), Error,
                 "rows for only 3 microbatches");
    EXPECT_EQ(curve(trainer, 2), std::vector<double>(expected.begin() + 2, expected.end()));
  });
}

TEST(TrainerWorld, GradientsThatAreNoNumbersAreOneErrorOnEveryRank) {
  const WorldCase c = world_case(2, "1F1B", 2);
  const std::vector<PreparedTrainer> models = {prepare(c.setup), prepare(c.setup)};
  LocalWorld world(2);
  const std::vector<std::string> errors = errors_of<Error>(world, [&](Transport& transport) {
    const PreparedTrainer& own = models[static_cast<std::size_t>(transport.rank().value())];
    Trainer trainer = own.make(&transport);
    {
      const at::NoGradGuard no_grad;
      trainer.states().back().tensor().mul_(std::numeric_limits<double>::quiet_NaN());
    }
    const auto before = own_values(trainer, c, transport);
    const std::pair batch = batch_of(0);
    const at::Tensor& inputs = batch.first;
    const at::Tensor& targets = batch.second;
    for (int i = 0; i < 2; ++i) {
      EXPECT_ERROR(trainer.step({inputs}, targets), Error, "infinite or NaN");
      EXPECT_EQ(trainer.steps(), 0);
    }
    for (const auto& [name, value] : own_values(trainer, c, transport)) {
      if (name != trainer.states().back().name) {
        EXPECT_TRUE(value.equal(before.at(name))) << name;
      }
    }
    trainer.step({inputs}, targets);
  });
  EXPECT_EQ(errors[0], errors[1]);
  EXPECT_EQ(errors[0].substr(0, 16), "the gradient of ");
}

TEST(TrainerWorld, BuffersAreThoseOfTheFirstReplica) {
  const auto make = [](const at::Tensor& sum) {
    return parse_graph(R"(graph exported
size B = 4, at least 1
parameter %w: float32[3, 2]
buffer %sum: float32[3] &0
args (%x: float32[B, 3],)
kwargs {}
%part = aten::sum.dim_IntList(self=%x, dim=[0], keepdim=False, dtype=None): float32[3]
%add_ = aten::add_.Tensor(self=%sum, other=%part, alpha=1): float32[3] &0
%mm = aten::mm(self=%x, mat2=%w): float32[B, 2]
return %mm
)",
                       [&](const std::string& name) {
                         return name == "sum" ? sum : at::ones({3, 2}).requires_grad_();
                       });
  };
  const std::vector<at::Tensor> sums = {at::zeros({3}), at::zeros({3})};
  const std::vector<Graph> graphs = {make(sums[0]), make(sums[1])};
  const at::Tensor x = at::arange(12, at::kFloat).view({4, 3});
  LocalWorld world(2);
  world.run([&](Transport& transport) {
    const auto r = static_cast<std::size_t>(transport.rank().value());
    Trainer trainer(
        Pipe(graphs[r], {.policy = equal_operators(1)}),
        [](const at::Tensor& y, const at::Tensor& target) { return at::mse_loss(y, target); },
        {.ranks = 1, .microbatches = 1, .transport = &transport, .replicas = 2});
    trainer.step({x}, at::zeros({4, 2}));
    EXPECT_TRUE(sums[r].equal(x.slice(0, 0, 2).sum(0))) << r;
    trainer.eval_loss({x}, at::zeros({4, 2}));
    EXPECT_TRUE(sums[r].equal(x.slice(0, 0, 2).sum(0))) << r;
  });
}

TEST(TrainerWorld, TellsWhatAllRanksDid) {
  const WorldCase c = world_case(4, "ZBVZeroBubble", 2, 2);
  on_ranks(c, [&](Transport& transport, const PreparedTrainer& own) {
    Trainer trainer = own.make(&transport, 2);
    const auto [inputs, targets] = batch_of(0);
    const TrainStep step = trainer.step({inputs}, targets, true);
    const RunReport report = make_run_report(trainer.recorded_run());
    EXPECT_EQ(report.ranks.size(), 2U);
    EXPECT_EQ(report.stages.size(), 4U);
    EXPECT_EQ(report.not_run, 0);
    const auto all =
        transport.all_gather(step.bubble_share, Deadline::after(std::chrono::seconds(20)));
    for (const c10::IValue& other : all) EXPECT_EQ(other.toDouble(), step.bubble_share);
  });
}

TEST(TrainerWorld, RefusesRanksThatDoNotFit) {
  const PreparedTrainer two = prepare(world_case(2, "1F1B", 2).setup);
  EXPECT_ERROR(two.make(nullptr, 2), ArgumentError, "2 replicas need a world");
  LocalWorld world(3);
  EXPECT_ERROR(two.make(&world.transport(Rank(0)), 2), ArgumentError,
               "a world of 3 ranks cannot hold 2 replicas");
  EXPECT_ERROR(two.make(&world.transport(Rank(0))), ArgumentError,
               "the schedule is for 2 ranks, but the world has 3");
}

TEST(TrainerWorld, RefusesRanksThatWouldUpdateInOtherWays) {
  const WorldCase c = world_case(1, "1F1B", 1, 2);
  std::vector<PreparedTrainer> models = {prepare(c.setup), prepare(c.setup)};
  models[1].options.clip = 0.25;
  LocalWorld world(2);
  const auto train = [&](Transport& transport) {
    const PreparedTrainer& own = models[static_cast<std::size_t>(transport.rank().value())];
    Trainer trainer = own.make(&transport, 2);
    curve(trainer, 1);
  };
  for (const std::string& error : errors_of<MetadataError>(world, train)) {
    EXPECT_EQ(error,
              "the ranks do not agree: the norm to clip at is 0.5 on rank 0, 0.25 on rank 1");
  }
  models[1].options.clip = 0.5;
  {
    const at::NoGradGuard no_grad;
    models[1].pipe.parameters()[2].add_(1);
  }
  LocalWorld again(2);
  for (const std::string& error : errors_of<MetadataError>(again, train)) {
    EXPECT_EQ(error.substr(0, 50), "ranks 0 and 1 have the same stages of two replicas");
  }
}

}  // namespace stagecraft
