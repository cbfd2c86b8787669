#include "tests/train/world_cases.h"

#include <chrono>

#include <gtest/gtest.h>

#include <ATen/ops/equal.h>

#include "stagecraft/runtime/schedule_source.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {

namespace {

constexpr int64_t kSteps = 4;
constexpr auto kWait = std::chrono::seconds(20);

double furthest(const at::Tensor& a, const at::Tensor& b) {
  return a.sub(b).abs().max().item<double>();
}

}  // namespace

WorldCase world_case(int32_t stages, const std::string& schedule, int32_t ranks, int32_t replicas) {
  WorldCase c{.setup = {}, .replicas = replicas};
  c.setup.stages = stages;
  c.setup.options.schedule = schedule;
  c.setup.options.ranks = ranks;
  if (replicas > 1) c.setup.options.microbatches = 2;
  return c;
}

std::vector<WorldCase> world_cases() {
  return {world_case(2, "1F1B", 2),
          world_case(4, "1F1B", 4),
          world_case(2, "GPipe", 2),
          world_case(4, "Interleaved1F1B", 2),
          world_case(4, "InterleavedZeroBubble", 2),
          world_case(2, "ZBVZeroBubble", 1),
          world_case(4, "ZBVZeroBubble", 2),
          world_case(4, "DualPipeV", 2),
          world_case(4, "LoopedBFS", 2)};
}

std::string to_string(const WorldCase& c) {
  return c.setup.options.schedule + ", " + std::to_string(c.setup.stages) + " stages on " +
         std::to_string(c.replicas) + " x " + std::to_string(*c.setup.options.ranks) + " ranks";
}

PreparedTrainer prepare_threads(const WorldCase& c) {
  TrainerSetup setup = c.setup;
  setup.options.microbatches *= c.replicas;
  return prepare(setup);
}

std::set<std::string> own_names(const Trainer& trainer, const WorldCase& c,
                                const Transport& transport) {
  const ScheduleSource source =
      source_for({}, c.setup.options.schedule, c.setup.options.ranks, c.setup.stages);
  const Rank own(transport.rank().value() % *c.setup.options.ranks);
  std::set<std::string> names;
  for (const ModelState& state : trainer.states()) {
    if (source.placement().get_rank(state.stage) == own) names.insert(state.name);
  }
  return names;
}

std::map<std::string, at::Tensor> own_values(const Trainer& trainer, const WorldCase& c,
                                             const Transport& transport) {
  const std::set<std::string> own = own_names(trainer, c, transport);
  std::map<std::string, at::Tensor> values;
  for (const ModelState& state : trainer.states()) {
    if (own.contains(state.name)) values.emplace(state.name, state.tensor().detach().clone());
  }
  return values;
}

Trained train(const WorldCase& c, Trainer trainer) {
  EXPECT_EQ(trainer.num_ranks(), *c.setup.options.ranks);
  Trained result;
  result.curve = curve(trainer, kSteps);
  for (const ModelState& state : trainer.states()) {
    result.values.emplace(state.name, state.tensor().detach().clone());
  }
  const auto [inputs, targets] = batch_of(50);
  result.loss = trainer.eval_loss({inputs}, targets);
  result.outputs = trainer.predict({inputs}).toTensor();
  return result;
}

void check_world(Transport& transport, const WorldCase& c, Trainer trainer,
                 const Trained& expected) {
  SCOPED_TRACE(to_string(c));
  const bool is_exact = c.replicas == 1;
  const std::set<std::string> own = own_names(trainer, c, transport);
  EXPECT_FALSE(own.empty());
  const Trained got = train(c, std::move(trainer));
  ASSERT_EQ(got.curve.size(), expected.curve.size());
  for (std::size_t i = 0; i < got.curve.size(); ++i) {
    EXPECT_NEAR(got.curve[i], expected.curve[i], is_exact ? 0 : 1e-5) << i;
  }
  EXPECT_NEAR(got.loss, expected.loss, is_exact ? 0 : 1e-5);
  EXPECT_LE(furthest(got.outputs, expected.outputs), is_exact ? 0 : 1e-4);
  std::vector<c10::IValue> told = {tree::tuple({got.curve.begin(), got.curve.end()}), got.loss,
                                   got.outputs};
  for (const std::string& name : own) {
    const at::Tensor& value = got.values.at(name);
    EXPECT_LE(furthest(value, expected.values.at(name)), is_exact ? 0 : 1e-5) << name;
    told.emplace_back(value);
  }

  const auto all = transport.all_gather(tree::tuple(std::move(told)), Deadline::after(kWait));
  for (std::size_t r = 0; r < all.size(); ++r) {
    const auto& theirs = all[r].toTupleRef().elements();
    EXPECT_EQ(theirs[1].toDouble(), got.loss) << "rank " << r;
    EXPECT_TRUE(at::equal(theirs[2].toTensor(), got.outputs)) << "rank " << r;
    for (std::size_t i = 0; i < got.curve.size(); ++i) {
      EXPECT_EQ(theirs[0].toTupleRef().elements()[i].toDouble(), got.curve[i]) << "rank " << r;
    }
    const auto twin = r % static_cast<std::size_t>(*c.setup.options.ranks);
    const auto& first = all[twin].toTupleRef().elements();
    for (std::size_t i = 3; i < theirs.size(); ++i) {
      EXPECT_TRUE(at::equal(theirs[i].toTensor(), first[i].toTensor())) << "rank " << r;
    }
  }
  // No rank releases its tensors while other ranks read them.
  transport.barrier(Deadline::after(kWait));
}

}  // namespace stagecraft
