// Values and gradients between stages, without stages: the test computes.

#include "stagecraft/runtime/router.h"

#include <chrono>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>

#include "stagecraft/base/error.h"
#include "stagecraft/schedule/placement.h"
#include "stagecraft/transport/local/local_world.h"
#include "stagecraft/tree/tree.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

Action act(int32_t stage, ActionType type, int32_t microbatch = 0) {
  return {StageId(stage), type, MicrobatchId(microbatch)};
}
Action forward(int32_t stage, int32_t microbatch = 0) {
  return act(stage, ActionType::kForward, microbatch);
}
Action backward(int32_t stage, int32_t microbatch = 0) {
  return act(stage, ActionType::kBackward, microbatch);
}

// One rank's router and what it needs.
class RoutedRank {
 public:
  RoutedRank(LocalWorld& world, Rank rank, const Ports& ports, PipelineOptions options = {})
      : options_(std::move(options)),
        wiring_(ports, Placement::loop(world.num_ranks(), ports.num_stages()),
                {rank, world.num_ranks(), 1}),
        router_(world.transport(rank), wiring_, recorder_, progress_, options_) {}

  void start(std::size_t microbatches = 1, Microbatches batch = {}, bool is_training = true) {
    batch_ = std::move(batch);
    recorder_.start(1, Recorder::Clock::now());
    router_.start(/*step=*/0, microbatches, is_training, batch_, /*meter=*/nullptr);
  }
  Router* operator->() { return &router_; }

  // The values that a forward from a different rank brings.
  Arguments receive(int32_t stage, int32_t microbatch = 0) {
    router_.post_receives(act(stage, ActionType::kRecvForward, microbatch));
    return router_.take_inputs(forward(stage, microbatch));
  }
  void send(int32_t stage, const c10::IValue& output, int32_t microbatch = 0) {
    router_.put_outputs(forward(stage, microbatch), output);
    router_.send(act(stage, ActionType::kSendForward, microbatch));
  }
  std::vector<c10::IValue> receive_grads(int32_t stage, int32_t microbatch = 0) {
    router_.post_receives(act(stage, ActionType::kRecvBackward, microbatch));
    return router_.take_output_grads(backward(stage, microbatch));
  }
  void send_grads(int32_t stage, std::vector<c10::IValue> grads, int32_t microbatch = 0) {
    router_.put_input_grads(backward(stage, microbatch), std::move(grads));
    router_.send(act(stage, ActionType::kSendBackward, microbatch));
  }

 private:
  const PipelineOptions options_;
  const Wiring wiring_;
  Recorder recorder_;
  ProgressMark progress_;
  Microbatches batch_;
  Router router_;
};

// Ranks that hold one stage each. One thread is all of them: a send does not wait for its receive.
class RouterTest : public testing::Test {
 protected:
  void start_two(std::size_t microbatches = 1) {
    zero_.start(microbatches);
    one_.start(microbatches);
  }

  LocalWorld world_{2};
  RoutedRank zero_{world_, Rank(0), Ports(2)};
  RoutedRank one_{world_, Rank(1), Ports(2)};
};

TEST_F(RouterTest, ValuesGoToTheOtherRankAndGradientsComeBack) {
  start_two();
  const at::Tensor y = at::randn({3}).requires_grad_() * 2;
  zero_.send(0, y);
  const Arguments arguments = one_.receive(1);
  ASSERT_EQ(arguments.args.size(), 1U);
  const at::Tensor x = arguments.args[0].toTensor();
  EXPECT_TRUE(at::equal(x, y));
  EXPECT_TRUE(x.requires_grad());
  EXPECT_TRUE(x.is_leaf()) << "the history of a different rank";

  const at::Tensor dx = at::randn({3});
  one_.send_grads(1, {dx});
  const auto grads = zero_.receive_grads(0);
  ASSERT_EQ(grads.size(), 1U);
  EXPECT_TRUE(at::equal(grads[0].toTensor(), dx));
  zero_->finish();
  one_->finish();
  EXPECT_FALSE(zero_->is_waiting());
}

TEST_F(RouterTest, EvaluationSendsValuesThatNeedNoGradient) {
  zero_.start(1, {}, /*is_training=*/false);
  one_.start(1, {}, /*is_training=*/false);
  zero_.send(0, at::ones({3}).requires_grad_());
  EXPECT_FALSE(one_.receive(1).args[0].toTensor().requires_grad());
}

TEST_F(RouterTest, MicrobatchesStayApart) {
  start_two(3);
  for (const int32_t m : {2, 0, 1}) zero_.send(0, at::full({1}, m), m);
  for (const int32_t m : {1, 2, 0}) {
    EXPECT_EQ(one_.receive(1, m).args[0].toTensor().item<int64_t>(), m);
    one_.send_grads(1, {at::full({1}, 10 + m)}, m);
  }
  for (const int32_t m : {0, 1, 2}) {
    EXPECT_EQ(zero_.receive_grads(0, m)[0].toTensor().item<int64_t>(), 10 + m);
  }
}

TEST_F(RouterTest, AMissingGradientArrivesAsNone) {
  start_two();
  zero_.send(0, tree::tuple({at::ones({1}), at::ones({1})}));
  EXPECT_EQ(one_.receive(1).args.size(), 2U);
  one_.send_grads(1, {c10::IValue(), at::full({1}, 5)});
  const auto grads = zero_.receive_grads(0);
  ASSERT_EQ(grads.size(), 2U);
  EXPECT_TRUE(grads[0].isNone());
  EXPECT_EQ(grads[1].toTensor().item<int64_t>(), 5);
}

TEST_F(RouterTest, TheWeightArrivesWithTheValues) {
  zero_.start(2, {.weights = {0.25, 0.75}});
  one_.start(2);
  EXPECT_EQ(one_->weight(MicrobatchId(1)), 0.5) << "until it is known";
  zero_.send(0, at::ones({1}), 1);
  one_.receive(1, 1);
  EXPECT_EQ(one_->weight(MicrobatchId(1)), 0.75);
  EXPECT_EQ(one_->weight(MicrobatchId(0)), 0.5);
}

TEST_F(RouterTest, ARankThatKnowsTheWeightKeepsIt) {
  zero_.start(1, {.weights = {0.25}});
  one_.start(1, {.weights = {0.5}});
  zero_.send(0, at::ones({1}));
  one_.receive(1);
  EXPECT_EQ(one_->weight(MicrobatchId(0)), 0.5);
}

TEST_F(RouterTest, RefusesAStepOfADifferentNumberOfMicrobatches) {
  zero_.start(2);
  one_.start(3);
  zero_.send(0, at::ones({1}));
  EXPECT_ERROR(one_.receive(1), MetadataError,
               "rank 0 runs a step of 2 microbatches, but this rank runs one of 3");
}

TEST_F(RouterTest, RefusesGradientsOfADifferentNumber) {
  start_two();
  zero_.send(0, tree::tuple({at::ones({1}), at::ones({1})}));
  one_.receive(1);
  EXPECT_ERROR(one_->put_input_grads(backward(1), {at::ones({1})}), ArgumentError,
               "stage 1 has 2 arguments, got 1 gradients");
}

TEST(Router, RefusesRanksThatDoNotAgreeOnThePorts) {
  LocalWorld world(2);
  Ports connected = Ports::without_chain(2);
  connected.connect({StageId(0), 0}, {StageId(1), 0});
  Ports more = connected;
  more.connect({StageId(0), 1}, {StageId(1), 1});
  RoutedRank zero(world, Rank(0), connected);
  RoutedRank one(world, Rank(1), more);
  zero.start();
  one.start();
  zero.send(0, at::ones({1}));
  EXPECT_ERROR(one.receive(1), MetadataError,
               "stage 0 sent 3 values to stage 1, expected 2, a weight and the number of "
               "microbatches: the ranks do not agree on the ports");
}

TEST_F(RouterTest, AnActionNeedsItsReceive) {
  start_two();
  EXPECT_ERROR(one_->take_inputs(forward(1)), ArgumentError, "no receive was posted");
}

TEST(Router, AValueThatDoesNotComeIsATimeout) {
  LocalWorld world(2);
  RoutedRank one(world, Rank(1), Ports(2), {.timeout = std::chrono::milliseconds(20)});
  one.start();
  EXPECT_FALSE(one->is_waiting());
  EXPECT_ERROR(one.receive(1), TimeoutError, "values of stage 0 for stage 1, microbatch 0");
  EXPECT_TRUE(one->is_waiting());
  one->clear();
  EXPECT_FALSE(one->is_waiting());
}

TEST_F(RouterTest, TheNextStepStartsWithNothingOfTheLast) {
  start_two(2);
  zero_.send(0, at::ones({1}));
  one_->post_receives(act(1, ActionType::kRecvForward));
  ASSERT_EQ(one_->receive_early(forward(1)).size(), 1U);
  one_.start(2);
  EXPECT_ERROR(one_->take_inputs(forward(1)), ArgumentError, "no receive was posted");
}

TEST_F(RouterTest, WhatArrivedEarlyCanBeReplaced) {
  start_two();
  zero_.send(0, at::full({1}, 1));
  one_->post_receives(act(1, ActionType::kRecvForward));
  const auto early = one_->receive_early(forward(1));
  ASSERT_EQ(early.size(), 1U);
  ASSERT_EQ(early[0]->size(), 1U) << "without the weight and the number of microbatches";
  EXPECT_EQ((*early[0])[0].toTensor().item<int64_t>(), 1);
  EXPECT_EQ(one_->receive_early(forward(1)), early);
  (*early[0])[0] = at::full({1}, 2);
  EXPECT_EQ(one_->take_inputs(forward(1)).args[0].toTensor().item<int64_t>(), 2);

  // Gradients likewise.
  one_.send_grads(1, {at::full({1}, 3)});
  zero_->post_receives(act(0, ActionType::kRecvBackward));
  const auto grads = zero_->receive_early(backward(0));
  ASSERT_EQ(grads.size(), 1U);
  (*grads[0])[0] = at::full({1}, 4);
  EXPECT_EQ(zero_->take_output_grads(backward(0))[0].toTensor().item<int64_t>(), 4);
}

TEST_F(RouterTest, WhatAnActionTookCanBeTakenAgain) {
  start_two();
  zero_.send(0, at::full({1}, 7));
  one_->post_receives(act(1, ActionType::kRecvForward));
  one_->receive_early(forward(1));
  const Router::Taken taken = one_->save_taken(forward(1));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(one_->take_inputs(forward(1)).args[0].toTensor().item<int64_t>(), 7);
    one_->restore_taken(forward(1), taken);
  }
}

TEST_F(RouterTest, OutgoingValuesAreThereUntilTheyAreSent) {
  start_two();
  EXPECT_TRUE(one_->outgoing(forward(1)).empty()) << "the last stage";
  zero_->put_outputs(forward(0), at::full({1}, 1));
  const auto outgoing = zero_->outgoing(forward(0));
  ASSERT_EQ(outgoing.size(), 1U);
  ASSERT_EQ(outgoing[0]->size(), 1U);
  (*outgoing[0])[0] = at::full({1}, 2);
  zero_->send(act(0, ActionType::kSendForward));
  EXPECT_TRUE(outgoing[0]->empty());
  EXPECT_EQ(one_.receive(1).args[0].toTensor().item<int64_t>(), 2);
}

// Stages on one rank ---------------------------------------------------------------------------

TEST(Router, StagesOfOneRankHandTensorsOver) {
  LocalWorld world(1);
  RoutedRank rank(world, Rank(0), Ports(2));
  rank.start();
  const at::Tensor y = at::randn({3}).requires_grad_() * 2;
  rank->put_outputs(forward(0), y);
  EXPECT_TRUE(rank->take_inputs(forward(1)).args[0].toTensor().is_same(y));
  const at::Tensor dy = at::randn({3});
  rank->put_input_grads(backward(1), {dy});
  EXPECT_TRUE(rank->take_output_grads(backward(0))[0].toTensor().is_same(dy));
}

TEST(Router, TheChainCarriesTheOutputsThatAreNotConnected) {
  LocalWorld world(1);
  Ports ports(3);
  ports.connect({StageId(0), 1}, {StageId(2), 0});
  RoutedRank rank(world, Rank(0), ports);
  rank.start();
  rank->put_outputs(forward(0),
                    tree::tuple({at::full({1}, 0), at::full({1}, 1), at::full({1}, 2)}));
  const Arguments one = rank->take_inputs(forward(1));
  ASSERT_EQ(one.args.size(), 2U);
  EXPECT_EQ(one.args[0].toTensor().item<int64_t>(), 0);
  EXPECT_EQ(one.args[1].toTensor().item<int64_t>(), 2);
  rank->put_outputs(forward(1), at::full({1}, 3));
  const Arguments two = rank->take_inputs(forward(2));
  ASSERT_EQ(two.args.size(), 2U);
  EXPECT_EQ(two.args[0].toTensor().item<int64_t>(), 1);
  EXPECT_EQ(two.args[1].toTensor().item<int64_t>(), 3);

  rank->put_input_grads(backward(2), {at::full({1}, 11), at::full({1}, 13)});
  EXPECT_EQ(rank->take_output_grads(backward(1))[0].toTensor().item<int64_t>(), 13);
  rank->put_input_grads(backward(1), {at::full({1}, 10), at::full({1}, 12)});
  const auto grads = rank->take_output_grads(backward(0));
  ASSERT_EQ(grads.size(), 3U);
  for (std::size_t n = 0; n < 3; ++n) {
    EXPECT_EQ(grads[n].toTensor().item<int64_t>(), 10 + static_cast<int64_t>(n));
  }
}

// Output 0 of stage 0 is read by three stages.
Ports three_readers() {
  Ports ports = Ports::without_chain(4);
  for (const int32_t reader : {1, 2, 3}) ports.connect({StageId(0), 0}, {StageId(reader), 0});
  return ports;
}

TEST(Router, GradientsOfSeveralReadersAreAddedLastReaderFirst) {
  LocalWorld world(1);
  RoutedRank rank(world, Rank(0), three_readers());
  rank.start();
  rank->put_outputs(forward(0), at::ones({1}));
  // Only (c + b) + a is 1.
  const std::vector<float> grads = {1, -1e8F, 1e8F};
  for (const int32_t reader : {1, 2, 3}) {
    rank->take_inputs(forward(reader));
    rank->put_input_grads(backward(reader),
                          {at::full({1}, grads[static_cast<std::size_t>(reader - 1)])});
  }
  EXPECT_EQ(rank->take_output_grads(backward(0))[0].toTensor().item<float>(), 1);
}

TEST(Router, RefusesASharedOutputThatAReaderHasChanged) {
  LocalWorld world(1);
  RoutedRank rank(world, Rank(0), three_readers());
  rank.start();
  rank->put_outputs(forward(0), at::ones({1}));
  for (const int32_t reader : {1, 2, 3}) {
    const at::Tensor x = rank->take_inputs(forward(reader)).args[0].toTensor();
    if (reader == 2) x.add_(1);
    rank->put_input_grads(backward(reader), {at::ones({1})});
  }
  EXPECT_ERROR(rank->take_output_grads(backward(0)), ArgumentError,
               "an output of stage 0 that several stages read was changed in place");
}

TEST(Router, RefusesAConnectedOutputThatTheStageDidNotReturn) {
  LocalWorld world(1);
  Ports ports(2);
  ports.connect({StageId(0), 1}, {StageId(1), 1});
  RoutedRank rank(world, Rank(0), ports);
  rank.start();
  EXPECT_ERROR(rank->put_outputs(forward(0), at::ones({1})), ArgumentError,
               "output 1 of stage 0 is connected to stage 1, but the stage returned 1 outputs");
}

// Inputs of the model --------------------------------------------------------------------------

TEST(Router, StagesTakeTheArgumentsOfTheModelThatAreFedToThem) {
  LocalWorld world(1);
  Ports ports(2);
  ports.feed(1, {StageId(1), 1});
  ports.feed("mask", {StageId(1), 0, "m"});
  RoutedRank rank(world, Rank(0), ports);
  rank.start(1, {.inputs = {{{at::full({1}, 0), at::full({1}, 1), at::full({1}, 2)},
                             {{"mask", 3}, {"scale", 4}}}}});
  const Arguments zero = rank->take_inputs(forward(0));
  ASSERT_EQ(zero.args.size(), 2U);
  EXPECT_EQ(zero.args[0].toTensor().item<int64_t>(), 0);
  EXPECT_EQ(zero.args[1].toTensor().item<int64_t>(), 2);
  ASSERT_EQ(zero.kwargs.size(), 1U);
  EXPECT_EQ(zero.kwargs.get("scale").toInt(), 4);
  rank->put_outputs(forward(0), at::full({1}, 5));
  const Arguments one = rank->take_inputs(forward(1));
  ASSERT_EQ(one.args.size(), 2U);
  EXPECT_EQ(one.args[0].toTensor().item<int64_t>(), 5);
  EXPECT_EQ(one.args[1].toTensor().item<int64_t>(), 1);
  EXPECT_EQ(one.kwargs.get("m").toInt(), 3);
}

TEST(Router, RefusesAStepWithoutAnArgumentThatIsFed) {
  LocalWorld world(1);
  Ports ports(1);
  ports.feed(1, {StageId(0), 0});
  RoutedRank by_position(world, Rank(0), ports);
  by_position.start(1, {.inputs = {{{at::ones({1})}, {}}}});
  EXPECT_ERROR(by_position->take_inputs(forward(0)), ArgumentError,
               "stage 0 takes the model's argument 1, which was not given to rank 0");
  Ports names(1);
  names.feed("mask", {StageId(0), 0});
  RoutedRank by_name(world, Rank(0), names);
  by_name.start();
  EXPECT_ERROR(by_name->take_inputs(forward(0)), ArgumentError,
               "stage 0 takes the model's \"mask\", which was not given to rank 0");
}

TEST(Router, GradientsGoOnIntoTheHistoryOfTheModelsInputs) {
  LocalWorld world(1);
  RoutedRank rank(world, Rank(0), Ports(1));
  const at::Tensor leaf = at::ones({2}).requires_grad_();
  // Both microbatches have one history, which is freed by one backward.
  const at::Tensor history = leaf * leaf;
  rank.start(2, {.inputs = {{{history * 2}, {}}, {{history * 3}, {}}}});
  for (const int32_t m : {0, 1}) {
    rank->take_inputs(forward(0, m));
    rank->put_input_grads(backward(0, m), {at::full({2}, 10.0)});
    EXPECT_FALSE(leaf.grad().defined());
  }
  rank->finish();
  EXPECT_TRUE(at::equal(leaf.grad(), at::full({2}, 100.0)));
  rank->finish();
  EXPECT_TRUE(at::equal(leaf.grad(), at::full({2}, 100.0))) << "twice";
}

}  // namespace
}  // namespace stagecraft
