// Trainers whose replicas divide optimizer, gradients and weights among themselves, on threads.

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <numeric>
#include <span>
#include <string>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>

#include "stagecraft/base/error.h"
#include "stagecraft/runtime/runner.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/passes/shard_stages.h"
#include "stagecraft/sim/simulate.h"
#include "stagecraft/sim/unshard_lookahead.h"
#include "stagecraft/stage/memory_meter.h"
#include "stagecraft/train/checkpoint.h"
#include "stagecraft/train/checkpoint_writer.h"
#include "stagecraft/transport/local/local_world.h"
#include "tests/support/expect_error.h"
#include "tests/train/world_cases.h"

namespace stagecraft {

namespace {

constexpr ShardKind kKinds[] = {ShardKind::kOptimizer, ShardKind::kGradients,
                                ShardKind::kParameters};

/// What a training came to: losses and norms, an evaluation, and rank 0's gathered weights.
struct Result {
  std::vector<double> curve;
  double loss = 0;
  std::vector<at::Tensor> weights;
};

/// Each rank has a model of its own, made beforehand.
void on_ranks(const WorldCase& c, const std::function<void(Transport&, Trainer)>& body) {
  const std::vector<PreparedTrainer> models = prepare_many(c.setup, c.ranks());
  LocalWorld world(c.ranks());
  world.run([&](Transport& transport) {
    body(transport, models[transport.rank().position()].make(&transport, c.replicas));
  });
}

Result run(WorldCase c, ShardKind kind, int64_t until = 4, const std::string& from = {},
           const std::string& to = {}) {
  c.setup.options.shard = kind;
  Result result;
  on_ranks(c, [&](Transport& transport, Trainer trainer) {
    if (!from.empty()) trainer.restore(load_checkpoint(from));
    const std::vector<double> numbers = curve(trainer, until);
    const auto [inputs, targets] = batch_of(50);
    const double loss = trainer.eval_loss({inputs}, targets);
    if (!to.empty()) save_checkpoint(to, trainer.checkpoint());
    trainer.gather_weights();
    if (transport.rank() == Rank(0)) result = {numbers, loss, values_of(trainer)};
    // A checkpoint is complete, and tensors stay, until all ranks are done.
    transport.barrier(Deadline::after(std::chrono::seconds(20)));
  });
  return result;
}

void expect_same(const Result& got, const Result& expected) {
  EXPECT_EQ(got.curve, expected.curve);
  EXPECT_EQ(got.loss, expected.loss);
  EXPECT_TRUE(same_bits(got.weights, expected.weights));
}

void check_kinds(const WorldCase& c, std::span<const ShardKind> kinds = kKinds) {
  SCOPED_TRACE(to_string(c));
  const Result expected = run(c, ShardKind::kNone, 3);
  for (const ShardKind kind : kinds) {
    SCOPED_TRACE(to_string(kind));
    expect_same(run(c, kind, 3), expected);
  }
}

/// The lookahead is that of the measured times, and the same on all ranks.
void expect_fit(Trainer& trainer, const MeasuredLookahead& found, Transport& transport) {
  const Recording recording = trainer.recorded_run().recording;
  const int32_t stages = trainer.pipe().num_stages();
  const Schedule schedule =
      build_schedule("Interleaved1F1B", {.ranks = trainer.num_ranks(),
                                         .microbatches = recording.schedule.num_microbatches(),
                                         .stages_per_rank = stages / trainer.num_ranks()});
  EXPECT_EQ(found.lookahead, find_unshard_lookahead(schedule, found.costs, recording.graph, 3));
  EXPECT_EQ(found.max_active_stages, 3);
  EXPECT_EQ(found.makespan,
            simulate(shard_stages(schedule, 3, found.lookahead), found.costs).makespan);
  ASSERT_EQ(found.costs.stages.size(), static_cast<std::size_t>(stages));
  ASSERT_EQ(found.costs.gather.size(), static_cast<std::size_t>(stages));
  std::vector<double> told(found.lookahead.begin(), found.lookahead.end());
  for (std::size_t s = 0; s < found.costs.stages.size(); ++s) {
    EXPECT_GT(found.costs.gather[s], 0);
    EXPECT_GT(found.costs.stages[s].forward, 0);
    EXPECT_GT(found.costs.stages[s].full_backward(), 0);
    told.push_back(found.costs.gather[s]);
    told.push_back(found.costs.stages[s].forward);
    told.push_back(found.costs.stages[s].full_backward());
  }
  for (const c10::IValue& other :
       transport.all_gather(told, Deadline::after(std::chrono::seconds(20)))) {
    EXPECT_EQ(other.toDoubleVector(), told);
  }
}

/// Whether all combinations are tried, not a few that cover each case.
bool is_complete() {
  return std::getenv("SC_SHARD_ALL") != nullptr;
}

/// torch's library for matrices has no bfloat16 on some processors, and then throws and catches an
/// exception in every product, which takes most of a test's time.
class WithoutMkldnn {
 public:
  WithoutMkldnn() : before_(at::globalContext().userEnabledMkldnn()) {
    at::globalContext().setUserEnabledMkldnn(false);
  }
  ~WithoutMkldnn() { at::globalContext().setUserEnabledMkldnn(before_); }
  WithoutMkldnn(const WithoutMkldnn&) = delete;
  WithoutMkldnn& operator=(const WithoutMkldnn&) = delete;

 private:
  bool before_;
};

std::string temporary(const std::string& name) {
  const std::string folder =
      testing::TempDir() + "shard_test_" + name + "_" + std::to_string(::getpid());
  std::filesystem::remove_all(folder);
  return folder;
}

}  // namespace

// All schedules and kinds are tried between processes (gloo_world_test.cpp), and by Runners.
TEST(ShardedTrainer, HasTheBitsOfWholeReplicas) {
  if (!is_complete()) {
    check_kinds(world_case(2, "1F1B", 2, 2));
    for (const char* schedule : {"InterleavedZeroBubble", "DualPipeV", "LoopedBFS"}) {
      WorldCase c = world_case(4, schedule, 2, 2);
      c.setup.options.microbatches = 4;
      check_kinds(c, std::array{ShardKind::kParameters});
    }
    return;
  }
  for (WorldCase c : world_cases()) {
    if (*c.setup.options.ranks > 2) continue;
    c.replicas = 2;
    c.setup.options.microbatches = 4;
    check_kinds(c);
  }
}

TEST(ShardedTrainer, WithAccumulationRecomputeDropoutAndAutocast) {
  const WithoutMkldnn no_exceptions;
  for (const bool is_learned : {false, true}) {
    WorldCase c = world_case(4, "ZBVZeroBubble", 2, 2);
    c.setup.sizes.positions = is_learned ? Positions::kLearned : Positions::kRotary;
    c.setup.sizes.is_tied = !is_learned;
    c.setup.sizes.dropout = 0.2;
    c.setup.evaluates_apart = false;
    c.setup.use.autocast = is_learned ? std::nullopt : std::optional(at::kBFloat16);
    c.setup.options.recompute = {0, 2};
    c.setup.options.microbatches = 2;
    c.setup.options.accumulate = 2;
    check_kinds(c);
  }
}

// The model without dropout has the same tensors, and gathers the same pieces.
TEST(ShardedTrainer, WithAModelForEvaluation) {
  WorldCase c = world_case(2, "Interleaved1F1B", 1, 2);
  c.setup.sizes.layers = 2;
  c.setup.sizes.dropout = 0.2;
  check_kinds(c, std::array{ShardKind::kParameters});
}

TEST(ShardedTrainer, WithThreeReplicas) {
  check_kinds(world_case(1, "1F1B", 1, 3));
}

TEST(ShardedTrainer, WithCopiesOfATiedWeight) {
  const Split split{.points = {}, .policy = equal_cost(2)};
  std::map<ShardKind, std::vector<double>> curves;
  for (const ShardKind kind :
       {ShardKind::kNone, ShardKind::kOptimizer, ShardKind::kGradients, ShardKind::kParameters}) {
    std::vector<Pipe> pipes;
    for (const PreparedTrainer& each : prepare_many({.stages = 2}, 4)) {
      pipes.emplace_back(each.pipe.graph(), split);
    }
    LocalWorld world(4);
    world.run([&](Transport& transport) {
      Trainer trainer(pipes[transport.rank().position()], cross_entropy,
                      {.schedule = "1F1B",
                       .ranks = 2,
                       .seed = 3,
                       .microbatches = 2,
                       .transport = &transport,
                       .replicas = 2,
                       .shard = kind});
      const std::vector<double> numbers = curve(trainer, 3);
      if (transport.rank() == Rank(0)) curves[kind] = numbers;
    });
    EXPECT_EQ(curves[kind], curves[ShardKind::kNone]) << to_string(kind);
  }
}

// From every kind of sharding to every other, and to other numbers of stages, ranks and replicas.
TEST(ShardedTrainer, CheckpointsLoadUnderAnySplitAndSharding) {
  struct Layout {
    WorldCase world;
    ShardKind kind;
  };
  const auto one = [](int32_t microbatches) {
    WorldCase c = world_case(1, "1F1B", 1);
    c.setup.options.microbatches = microbatches;
    return c;
  };
  const std::vector<Layout> layouts = {
      {world_case(2, "1F1B", 2, 2), ShardKind::kNone},
      {world_case(2, "1F1B", 2, 2), ShardKind::kOptimizer},
      {world_case(4, "Interleaved1F1B", 2, 2), ShardKind::kGradients},
      {world_case(2, "1F1B", 2, 2), ShardKind::kParameters},
      {world_case(1, "1F1B", 1, 3), ShardKind::kParameters},
      {one(4), ShardKind::kNone},
  };
  for (std::size_t from = 0; from < layouts.size(); ++from) {
    SCOPED_TRACE("from " + to_string(layouts[from].world) + ", " +
                 std::string(to_string(layouts[from].kind)));
    const std::string folder = temporary(std::to_string(from));
    const Result saved = run(layouts[from].world, layouts[from].kind, 2, {}, folder);
    const Checkpoint checkpoint = load_checkpoint(folder);
    EXPECT_EQ(checkpoint.step, 2);
    for (std::size_t i = 0; i < layouts.size(); ++i) {
      // Two for each, so that every layout is loaded twice, from different ones.
      const std::size_t distance = (i + layouts.size() - from) % layouts.size();
      if (!is_complete() && distance != 1 && distance != 3) continue;
      const Layout& to = layouts[i];
      SCOPED_TRACE("to " + to_string(to.world) + ", " + std::string(to_string(to.kind)));
      // Nothing is trained: the restored weights are those that were saved.
      EXPECT_TRUE(same_bits(run(to.world, to.kind, 2, folder).weights, saved.weights));
    }
    // Moments, too: training goes on in the same bits.
    expect_same(run(layouts[from].world, layouts[from].kind, 4, folder), [&] {
      Result whole = run(layouts[from].world, layouts[from].kind, 4);
      whole.curve.erase(whole.curve.begin(), whole.curve.begin() + 4);
      return whole;
    }());
    if (layouts[from].world.replicas == 2 && (is_complete() || from == 2)) {
      // The same with every kind of sharding.
      const Result next = run(layouts[0].world, ShardKind::kNone, 4, folder);
      expect_same(run(layouts[0].world, ShardKind::kParameters, 4, folder), next);
    }
    std::filesystem::remove_all(folder);
  }
}

TEST(ShardedTrainer, AnIncompleteOrDamagedPartIsNamed) {
  const std::string folder = temporary("damaged");
  run(world_case(2, "1F1B", 2, 2), ShardKind::kParameters, 1, {}, folder);
  const std::filesystem::path part = std::filesystem::path(folder) / "step-00000001" / "part-2.pt";
  ASSERT_TRUE(std::filesystem::exists(part));
  EXPECT_EQ(list_checkpoints(folder).size(), 1U);
  std::filesystem::resize_file(part, std::filesystem::file_size(part) - 1);
  EXPECT_ERROR(load_checkpoint(folder), FileError, "part-2.pt: damaged");
  std::filesystem::remove(part);
  EXPECT_ERROR(load_checkpoint(folder), FileError, "part-2.pt");
  std::filesystem::remove_all(folder);
}

TEST(ShardedTrainer, AWriterOnEveryRankWritesItsPart) {
  const std::string folder = temporary("writer");
  WorldCase c = world_case(2, "1F1B", 2, 2);
  c.setup.options.shard = ShardKind::kGradients;
  on_ranks(c, [&](Transport& transport, Trainer trainer) {
    CheckpointWriter writer(folder, 2);
    for (int64_t until = 1; until <= 4; ++until) {
      curve(trainer, until);
      writer.start(trainer.checkpoint());
    }
    writer.finish();
    transport.barrier(Deadline::after(std::chrono::seconds(20)));
  });
  EXPECT_EQ(list_checkpoints(folder).size(), 2U);
  EXPECT_EQ(load_checkpoint(folder).step, 4);
  const auto left = std::distance(std::filesystem::directory_iterator(folder), {});
  EXPECT_EQ(left, 2) << "nothing but two checkpoints";
  std::filesystem::remove_all(folder);
}

// Each rank has a pipe of its own, and needs the weights of its stages only.
TEST(ShardedTrainer, OtherStagesCanBeReleased) {
  WorldCase c = world_case(2, "1F1B", 2, 2);
  const Result expected = run(c, ShardKind::kNone);
  c.setup.options.shard = ShardKind::kParameters;
  const std::string folder = temporary("released");
  on_ranks(c, [&](Transport& transport, Trainer trainer) {
    trainer.release_other_stages();
    const std::vector<double> numbers = curve(trainer, 2);
    EXPECT_EQ(numbers, std::vector<double>(expected.curve.begin(), expected.curve.begin() + 4));
    std::size_t bytes = 0;
    for (const ModelState& state : trainer.states()) {
      if (state.is_parameter) bytes += state.tensor().storage().nbytes();
    }
    EXPECT_EQ(bytes, 0U);
    save_checkpoint(folder, trainer.checkpoint());
    transport.barrier(Deadline::after(std::chrono::seconds(20)));
  });
  on_ranks(c, [&](Transport& transport, Trainer trainer) {
    trainer.release_other_stages();
    trainer.restore(load_checkpoint(folder));
    curve(trainer, 4);
    trainer.gather_weights();
    if (transport.rank() == Rank(0)) {
      EXPECT_TRUE(same_bits(values_of(trainer), expected.weights));
    }
    transport.barrier(Deadline::after(std::chrono::seconds(20)));
  });
  std::filesystem::remove_all(folder);
}

// Parameters, gradients and moments are at most 1.05 / R of the whole.
TEST(ShardedTrainer, ARankHoldsItsShare) {
  std::map<ShardKind, Trainer::Memory> held;
  for (const ShardKind kind :
       {ShardKind::kNone, ShardKind::kOptimizer, ShardKind::kGradients, ShardKind::kParameters}) {
    WorldCase c = world_case(2, "1F1B", 2, 2);
    c.setup.sizes.width = 64;
    c.setup.options.shard = kind;
    on_ranks(c, [&](Transport& transport, Trainer trainer) {
      curve(trainer, 1);
      if (transport.rank() == Rank(1)) held[kind] = trainer.memory();
    });
  }
  const Trainer::Memory whole = held[ShardKind::kNone];
  EXPECT_GT(whole.parameters, 0);
  const auto share = [](int64_t part, int64_t all) {
    return static_cast<double>(part) / static_cast<double>(all);
  };
  EXPECT_LE(share(held[ShardKind::kOptimizer].optimizer, whole.optimizer), 0.525);
  EXPECT_LE(share(held[ShardKind::kGradients].optimizer, whole.optimizer), 0.525);
  EXPECT_LE(share(held[ShardKind::kGradients].gradients, whole.gradients), 0.525);
  EXPECT_LE(share(held[ShardKind::kParameters].optimizer, whole.optimizer), 0.525);
  EXPECT_LE(share(held[ShardKind::kParameters].gradients, whole.gradients), 0.525);
  EXPECT_LE(share(held[ShardKind::kParameters].parameters, whole.parameters), 0.525);
}

// The bytes that a step of one replica takes beside parameters and gradients.
int64_t activation_bytes(const PreparedTrainer& model, const TrainerOptions& options,
                         const at::Tensor& inputs, const at::Tensor& targets) {
  int64_t peak = 0;
  LocalWorld world(1);
  world.run([&](Transport& transport) {
    Runner runner(transport, model.pipe,
                  {.source = options.source, .loss = cross_entropy, .seed = 3});
    for (at::Tensor& parameter : runner.parameters()) {
      parameter.mutable_grad() = at::zeros_like(parameter);
    }
    MemoryMeter meter(1);
    const MemoryMeter::Scope scope(meter, 0);
    runner.step({inputs}, {}, targets,
                {.microbatches = options.microbatches, .outputs = OutputMode::kNone});
    peak = meter.peak(0);
  });
  return peak;
}

// Inside of a step, and all that the rank's thread allocates for training counts: its pieces of
// parameters, gradients and moments, the whole weights of `active` stages, whole gradients of the
// stages that are not reduced yet, and activations. Backwards of a stage follow each other in this
// schedule. A replica is at most `active` stages ahead of the other one, because it needs its
// pieces of weights, so whole gradients are those of one stage more.
TEST(ShardedTrainer, AStepHoldsPiecesAndAFewWholeStages) {
  constexpr int32_t kStages = 8;
  constexpr int32_t kActive = 2;
  WorldCase c = world_case(kStages, "LoopedBFS", 1, 2);
  c.setup.sizes.layers = kStages;
  c.setup.sizes.width = 64;
  c.setup.sizes.is_tied = false;
  c.setup.options.source =
      ScheduleSource::named("LoopedBFS", 1, kStages, LowerOptions{.max_active_stages = kActive});
  c.setup.options.shard = ShardKind::kParameters;
  const std::vector<PreparedTrainer> models = prepare_many(c.setup, 3);
  // Few tokens, so that most of the memory is that of weights.
  const at::Tensor inputs = batch_of(0).first.slice(0, 0, 4).slice(1, 0, 2);
  const at::Tensor targets = batch_of(0).second.slice(0, 0, 4).slice(1, 0, 2);
  const int64_t activations =
      activation_bytes(models[2], c.setup.options, inputs.slice(0, 0, 2), targets.slice(0, 0, 2));
  std::vector<int64_t> stages(kStages, 0);  // bytes of parameters
  for (StageId s(0); s.value() < kStages; ++s) {
    for (const GraphState& state : models[0].pipe.stage_graph(s).parts().states) {
      const bool is_sharded = state.kind == GraphState::Kind::kParameter;
      if (is_sharded) stages[s.position()] += static_cast<int64_t>(state.tensor.nbytes());
    }
  }
  const int64_t whole = std::accumulate(stages.begin(), stages.end(), int64_t{0});
  const int64_t largest = *std::max_element(stages.begin(), stages.end());
  MemoryMeter meter(2);
  std::vector<int64_t> peaks(2);
  LocalWorld world(2);
  world.run([&](Transport& transport) {
    const int account = transport.rank().value();
    const MemoryMeter::Scope scope(meter, account);
    Trainer trainer = models[transport.rank().position()].make(&transport, 2);
    trainer.step({inputs}, targets);
    transport.barrier(Deadline::after(std::chrono::seconds(20)));
    meter.reset_peak(account);
    trainer.step({inputs}, targets);
    peaks[transport.rank().position()] = meter.peak(account);
    transport.barrier(Deadline::after(std::chrono::seconds(20)));
  });
  // Parameters, gradients and two moments.
  const double share = 4.0 * static_cast<double>(whole) / 2;
  const auto unsharded = static_cast<double>(largest * (2 * kActive + 1));
  for (const int64_t peak : peaks) {
    EXPECT_LE(static_cast<double>(peak),
              1.05 * (share + unsharded) + static_cast<double>(activations));
    EXPECT_GE(static_cast<double>(peak), 0.95 * share);  // the meter sees them
  }
}

// Weights of half types, with float32 copies that are sharded and saved.
TEST(ShardedTrainer, WithMasterWeights) {
  WorldCase c = world_case(2, "1F1B", 2, 2);
  c.setup.weights = at::kBFloat16;
  c.setup.sizes.positions = Positions::kLearned;
  c.setup.sizes.is_tied = false;
  const WithoutMkldnn no_exceptions;
  const std::vector<double> plain = run(c, ShardKind::kNone, 3).curve;
  c.setup.options.adamw.master_weights = true;
  const Result expected = run(c, ShardKind::kNone, 3);
  EXPECT_NE(expected.curve, plain);
  // Checkpoints have the copies, whole: training goes on in the same bits with every kind.
  const std::string folder = temporary("master");
  ShardKind next = ShardKind::kNone;
  for (const ShardKind kind : {ShardKind::kParameters, ShardKind::kOptimizer, ShardKind::kNone}) {
    SCOPED_TRACE(to_string(kind));
    run(c, kind, 2, {}, folder);
    EXPECT_TRUE(same_bits(run(c, next, 3, folder).weights, expected.weights));
    next = kind;
    if (kind == ShardKind::kNone) continue;
    std::filesystem::remove_all(folder);
  }
  // Without copies, moments are rounded; from such a checkpoint, copies are those of the weights.
  c.setup.options.adamw.master_weights = false;
  run(c, ShardKind::kParameters, 3, folder, folder);
  c.setup.options.adamw.master_weights = true;
  EXPECT_EQ(run(c, ShardKind::kParameters, 4, folder).curve.size(), 2U);
  std::filesystem::remove_all(folder);
}

TEST(ShardedTrainer, UnitsCanBeNamed) {
  WorldCase c = world_case(2, "1F1B", 2, 2);
  const Result expected = run(c, ShardKind::kNone);
  c.setup.options.shard_units = {"embed", "blocks.0", "blocks.1", "blocks.2"};
  const std::string folder = temporary("units");
  expect_same(run(c, ShardKind::kParameters, 4, {}, folder), expected);
  c.setup.options.shard_units = {"head"};
  EXPECT_TRUE(same_bits(run(c, ShardKind::kParameters, 4, folder).weights, expected.weights));
  std::filesystem::remove_all(folder);
}

// Where weights are gathered changes no bit, before and after the lookahead is changed.
TEST(ShardedTrainer, TheLookaheadChangesNoBit) {
  WorldCase c = world_case(6, "Interleaved1F1B", 2, 2);
  const Result expected = run(c, ShardKind::kNone);
  const auto with = [&](const UnshardLookahead& lookahead) {
    c.setup.options.source = ScheduleSource::named("Interleaved1F1B", 2, 3,
                                                   LowerOptions{.unshard_lookahead = lookahead});
    expect_same(run(c, ShardKind::kParameters), expected);
  };
  with(Lookahead::kAuto);
  with(std::vector<int32_t>{1, 2});
  c.setup.options.source.reset();
  c.setup.options.shard = ShardKind::kParameters;
  on_ranks(c, [&](Transport& transport, Trainer trainer) {
    curve(trainer, 2);
    const MeasuredLookahead found = trainer.fit_unshard_lookahead();
    expect_fit(trainer, found, transport);
    curve(trainer, 4);
    const auto [inputs, targets] = batch_of(50);
    EXPECT_EQ(trainer.eval_loss({inputs}, targets), expected.loss);
    // Later steps have it.
    const Recording recording = trainer.recorded_run().recording;
    EXPECT_EQ(recording.schedule,
              *ScheduleSource::named("Interleaved1F1B", 2, 3,
                                     LowerOptions{.unshard_lookahead = found.lookahead})
                   .training(2, recording.graph));
    trainer.gather_weights();
    EXPECT_TRUE(transport.rank() != Rank(0) || same_bits(values_of(trainer), expected.weights));
    transport.barrier(Deadline::after(std::chrono::seconds(20)));
  });
}

TEST(ShardedTrainer, TheLookaheadNeedsAStepAndGathers) {
  WorldCase c = world_case(2, "1F1B", 2, 2);
  c.setup.options.shard = ShardKind::kGradients;
  on_ranks(c, [&](Transport&, Trainer trainer) {
    curve(trainer, 1);
    EXPECT_ERROR(trainer.fit_unshard_lookahead(), ArgumentError,
                 "weights that are not sharded are not gathered");
  });
  c.setup.options.shard = ShardKind::kParameters;
  on_ranks(c, [&](Transport&, Trainer trainer) {
    EXPECT_ERROR(trainer.fit_unshard_lookahead(), ArgumentError, "call step before");
  });
  const Schedule schedule = shard_stages(build_schedule("1F1B", {.ranks = 2, .microbatches = 2}));
  c.setup.options.source = ScheduleSource::fixed(schedule);
  on_ranks(c, [&](Transport&, Trainer trainer) {
    const std::vector<double> before = curve(trainer, 1);
    EXPECT_ERROR(trainer.fit_unshard_lookahead(), ArgumentError, "its lookahead is fixed");
    EXPECT_EQ(curve(trainer, 2).size(), before.size());
  });
}

TEST(ShardedTrainer, NeedsAWorldAndTheSameWeights) {
  TrainerSetup setup;
  setup.options.shard = ShardKind::kParameters;
  EXPECT_ERROR(make_trainer(setup), ArgumentError, "sharded parameters need replicas");
  WorldCase c = world_case(1, "1F1B", 1, 2);
  c.setup.options.shard = ShardKind::kParameters;
  const std::vector<PreparedTrainer> models = {
      prepare(c.setup), [&] {
        TrainerSetup other = c.setup;
        PreparedTrainer made = prepare(other);
        const at::NoGradGuard no_grad;
        model_states(made.pipe).front().tensor().detach().mul_(2);
        return made;
      }()};
  LocalWorld world(2);
  world.run([&](Transport& transport) {
    Trainer trainer = models[transport.rank().position()].make(&transport, 2);
    const std::pair batch = batch_of(0);
    const at::Tensor& inputs = batch.first;
    const at::Tensor& targets = batch.second;
    EXPECT_ERROR(trainer.step({inputs}, targets), MetadataError, "but different weights");
  });
}

}  // namespace stagecraft
