#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ops/ones.h>

#include "stagecraft/base/error.h"
#include "stagecraft/tree/tree.h"
#include "tests/runtime/faults.h"
#include "tests/runtime/harness.h"
#include "tests/support/expect_error.h"

// When things go wrong and every rank is a program of its own (Runner): all of them hear of it.

namespace stagecraft {
namespace {

constexpr double kSpmdAtOnce = 5;  // seconds; the goal is 1, the machine may be busy
constexpr std::chrono::seconds kTimeout(20);

using Call = FaultyTransport::Call;

/// The ranks of a world, each with a runner that lasts from one step to the next.
class Ranks {
 public:
  explicit Ranks(const ScheduleCase& shape, PipelineOptions options = {},
                 const LocalWorldOptions& world = {})
      : source_(shape.source()),
        model_(probed_chain(shape.stages(), probe_)),
        batch_(random_batch(shape.microbatches, 3 * shape.microbatches, 5, 3)),
        options_{.microbatches = shape.microbatches, .outputs = OutputMode::kNone},
        world_(std::make_unique<LocalWorld>(shape.ranks, world)) {
    options = runner_options(model_, std::move(options));
    options.source = source_;
    // Four times what counts as at once: a hang shows, and does not last.
    options.timeout = std::min<std::chrono::nanoseconds>(options.timeout, kTimeout);
    for (Rank rank(0); rank.value() < shape.ranks; ++rank) {
      ends_.push_back(std::make_unique<FaultyTransport>(world_->transport(rank)));
      runners_.push_back(std::make_unique<Runner>(
          *ends_.back(), stages_on(model_, source_.placement(), rank), options));
    }
    expected_ = cut_grads(model_, batch_,
                          *source_.training(shape.microbatches, StageGraph::chain(shape.stages())));
  }

  /// Calls `body` for each rank, on a thread of its own, and keeps what each throws.
  void run(const std::function<void(Runner& runner, Rank rank)>& body) {
    thrown_.assign(runners_.size(), nullptr);
    seconds_.assign(runners_.size(), 0);
    std::vector<std::future<void>> ranks;
    for (std::size_t r = 0; r < runners_.size(); ++r) {
      ranks.push_back(std::async(std::launch::async, [&, r] {
        const Stopwatch watch;
        thrown_[r] = thrown_by([&] { body(*runners_[r], Rank(static_cast<int32_t>(r))); });
        seconds_[r] = watch.seconds();
      }));
    }
    for (auto& rank : ranks) rank.get();
  }
  void step() {
    run([&](Runner& runner, Rank rank) { step(runner, rank); });
  }
  void step(Runner& runner, Rank rank) {
    runner.step(part_of(batch_, source_.placement(), rank), options_);
  }

  /// All ranks failed at once, and none has kept anything.
  void expect_clean_failure() {
    for (std::size_t r = 0; r < runners_.size(); ++r) {
      EXPECT_TRUE(thrown_[r]) << "rank " << r << " noticed nothing";
      EXPECT_LT(seconds_[r], kSpmdAtOnce) << "rank " << r;
      for (const StageId stage : source_.placement().stages(Rank(static_cast<int32_t>(r)))) {
        EXPECT_EQ(runners_[r]->stage(stage).num_pending(), 0U);
      }
    }
    for (const at::Tensor& grad : take_grads(model_.bodies)) EXPECT_FALSE(grad.defined());
    EXPECT_EQ(probe_->take_num_alive(), 0U);
  }
  /// The rank itself says where; to the others it is a peer's failure, with the same cause.
  void expect_failed_on(Rank failed, const std::string& action) {
    expect_clean_failure();
    const std::exception_ptr& own = thrown_[static_cast<std::size_t>(failed.value())];
    EXPECT_TRUE(is_a<StageError>(own)) << message_of(own);
    for (std::size_t r = 0; r < thrown_.size(); ++r) {
      if (Rank(static_cast<int32_t>(r)) != failed) {
        EXPECT_TRUE(is_a<PeerError>(thrown_[r])) << message_of(thrown_[r]);
      }
      const auto error = find_stage_error(thrown_[r]);
      ASSERT_TRUE(error) << message_of(thrown_[r]);
      EXPECT_EQ(error->place().rank, failed);
      if (!action.empty()) {
        EXPECT_EQ(error->place().action, action);
        EXPECT_THAT(message_of(thrown_[r]), testing::HasSubstr("action " + action));
      }
      EXPECT_THAT(message_of(thrown_[r]), testing::StartsWith("rank " + to_string(failed) + ","));
      EXPECT_TRUE(is_a<Boom>(error->cause())) << message_of(thrown_[r]);
    }
  }
  void expect_good_step() {
    step();
    for (const std::exception_ptr& thrown : thrown_) EXPECT_FALSE(thrown) << message_of(thrown);
    EXPECT_EQ(difference("gradient", take_grads(model_.bodies), expected_), "");
    probe_->take_num_alive();
  }

  Probe& probe() { return *probe_; }
  FaultyTransport& end(int32_t rank) { return *ends_[static_cast<std::size_t>(rank)]; }
  Runner& runner(int32_t rank) { return *runners_[static_cast<std::size_t>(rank)]; }
  const std::exception_ptr& thrown(int32_t rank) const {
    return thrown_[static_cast<std::size_t>(rank)];
  }
  double seconds(int32_t rank) const { return seconds_[static_cast<std::size_t>(rank)]; }
  const TestModel& model() const { return model_; }
  const Microbatches& batch() const { return batch_; }
  const Placement& placement() const { return source_.placement(); }

 private:
  ScheduleSource source_;
  std::shared_ptr<Probe> probe_ = std::make_shared<Probe>();
  TestModel model_;
  Microbatches batch_;
  StepOptions options_;
  std::unique_ptr<LocalWorld> world_;
  std::vector<std::unique_ptr<FaultyTransport>> ends_;
  std::vector<std::unique_ptr<Runner>> runners_;
  std::vector<at::Tensor> expected_;
  std::vector<std::exception_ptr> thrown_;
  std::vector<double> seconds_;
};

TEST(SpmdFailure, InAForwardOnAnyRank) {
  for (const int32_t size : {2, 3}) {
    for (const ScheduleCase& shape : training_cases(size)) {
      SCOPED_TRACE(to_string(shape));
      Ranks ranks(shape);
      ranks.expect_good_step();
      for (int32_t s = 0; s < shape.stages(); s += shape.stages_per_rank) {
        ranks.probe().set([s](StageId stage, MicrobatchId m, at::Tensor&) {
          if (stage.value() == s && m.value() == 1) throw Boom();
        });
        ranks.step();
        ranks.expect_failed_on(ranks.placement().get_rank(StageId(s)), std::to_string(s) + "F1");
        ranks.probe().set({});
        ranks.expect_good_step();
      }
    }
  }
}

TEST(SpmdFailure, InABackwardOnAnyRank) {
  for (const ScheduleCase& shape : training_cases(2)) {
    SCOPED_TRACE(to_string(shape));
    Ranks ranks(shape);
    for (int32_t s = 0; s < shape.stages(); ++s) {
      ranks.probe().set([s](StageId stage, MicrobatchId m, at::Tensor& output) {
        if (stage.value() == s && m.value() == 0) {
          output.register_hook([](const at::Tensor&) { throw Boom(); });
        }
      });
      ranks.step();
      ranks.expect_failed_on(ranks.placement().get_rank(StageId(s)), "");
      ranks.probe().set({});
      ranks.expect_good_step();
    }
  }
}

// The first, a middle and the last call of each kind that a step makes, on every rank.
TEST(SpmdFailure, InATransferOnAnyRank) {
  const std::array calls = {Call::kPostSend, Call::kPostReceive, Call::kWaitSend,
                            Call::kWaitReceive};
  int cases = 0;
  for (const char* name : {"1F1B", "ZBVZeroBubble"}) {
    const ScheduleCase shape{name, 3, name[0] == 'Z' ? 2 : 1, 4};
    Ranks ranks(shape, {.zero_buffering = true}, {.zero_buffering = true});
    ranks.expect_good_step();
    for (int32_t r = 0; r < shape.ranks; ++r) {
      for (const Call call : calls) {
        const int before = ranks.end(r).count(call);
        ranks.expect_good_step();
        const int made = ranks.end(r).count(call) - before;
        ASSERT_GT(made, 0);
        for (const int n : {0, made / 2, made - 1}) {
          SCOPED_TRACE(std::string(name) + ", rank " + std::to_string(r) + ", kind " +
                       std::to_string(static_cast<int>(call)) + ", call " + std::to_string(n));
          ranks.end(r).fail(call, n);
          ranks.step();
          ranks.expect_failed_on(Rank(r), "");
          const auto error = find_stage_error(ranks.thrown(r));
          ASSERT_TRUE(error);
          EXPECT_GE(error->place().stage.value(), 0);
          EXPECT_GE(error->place().microbatch.value(), 0);
          ranks.expect_good_step();
          ++cases;
        }
      }
    }
  }
  EXPECT_EQ(cases, 2 * 3 * 4 * 3);
}

// Outside of any action: what the ranks tell each other at the end of a step.
TEST(SpmdFailure, AtTheEndOfAStep) {
  Ranks ranks({"1F1B", 2, 1, 4});
  ranks.expect_good_step();
  for (int32_t r = 0; r < 2; ++r) {
    ranks.end(r).fail(Call::kAllGather, 0);
    ranks.step();
    ranks.expect_clean_failure();
    EXPECT_THAT(message_of(ranks.thrown(r)), testing::HasSubstr("boom"));
    EXPECT_TRUE(is_a<PeerError>(ranks.thrown(1 - r)));
    EXPECT_THAT(message_of(ranks.thrown(1 - r)),
                testing::StartsWith("rank " + std::to_string(r) + ": "));
    ranks.expect_good_step();
  }
}

TEST(SpmdFailure, WrongShapeOnTheWire) {
  Ranks ranks({"1F1B", 2, 1, 4});
  bool is_armed = true;
  ranks.end(0).alter([&](const TransferId& id, c10::IValue& value) {
    if (!is_armed || id.direction != Direction::kBackward || id.microbatch.value() != 1) return;
    value = tree::tuple({at::ones({4, 4})});
  });
  ranks.step();
  ranks.expect_clean_failure();
  const auto error = find_stage_error(ranks.thrown(1));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->place().rank, Rank(0));
  EXPECT_EQ(error->place().action, "0B1");
  EXPECT_TRUE(is_a<MetadataError>(error->cause())) << error->what();
  is_armed = false;
  ranks.expect_good_step();
}

// As when ranks do not agree about the ports.
TEST(SpmdFailure, WrongStructureOnTheWire) {
  const std::vector<c10::IValue> wrong = {
      tree::tuple({}), tree::tuple({at::ones({3, 5}), at::ones({3, 5}), at::ones({3, 5})}),
      c10::IValue("nonsense"), c10::IValue()};
  Ranks ranks({"1F1B", 2, 1, 4});
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    for (std::size_t i = 0; i < wrong.size(); ++i) {
      SCOPED_TRACE(i);
      const int32_t at = direction == Direction::kForward ? 1 : 0;
      bool is_armed = true;
      ranks.end(at).alter([&](const TransferId& id, c10::IValue& value) {
        if (is_armed && id.direction == direction && id.microbatch.value() == 1) value = wrong[i];
      });
      ranks.step();
      ranks.expect_clean_failure();
      const auto error = find_stage_error(ranks.thrown(1 - at));
      ASSERT_TRUE(error) << message_of(ranks.thrown(1 - at));
      EXPECT_EQ(error->place().rank, Rank(at));
      EXPECT_EQ(error->place().action, at == 1 ? "1F1" : "0B1");
      EXPECT_TRUE(is_a<MetadataError>(error->cause())) << error->what();
      is_armed = false;
      ranks.expect_good_step();
    }
  }
}

TEST(SpmdFailure, ABatchThatCannotBeCut) {
  Ranks ranks({"1F1B", 2, 1, 4});
  const at::Tensor x = random_tensor({3, 5}, 1);
  ranks.run([&](Runner& runner, Rank rank) {
    if (rank.value() == 0) {
      runner.step({x}, {}, {}, {.microbatches = 4});
    } else {
      ranks.step(runner, rank);
    }
  });
  ranks.expect_clean_failure();
  EXPECT_TRUE(is_a<ArgumentError>(ranks.thrown(0)));
  EXPECT_TRUE(is_a<PeerError>(ranks.thrown(1)));
  EXPECT_THAT(message_of(ranks.thrown(1)), testing::StartsWith("rank 0: "));
  ranks.expect_good_step();
}

TEST(SpmdFailure, InAnEvaluation) {
  Ranks ranks({"1F1B", 3, 1, 4});
  ranks.probe().set([](StageId stage, MicrobatchId m, at::Tensor&) {
    if (stage.value() == 1 && m.value() == 3) throw Boom();
  });
  ranks.run([&](Runner& runner, Rank rank) {
    runner.eval(part_of(ranks.batch(), ranks.placement(), rank), {.microbatches = 4});
  });
  ranks.expect_failed_on(Rank(1), "1F3");
  ranks.probe().set({});
  ranks.expect_good_step();
}

// The others say within the timeout for what they waited, and from whom; once it is there, all
// goes on.
TEST(SpmdFailure, ARankThatNeverComes) {
  for (int32_t absent = 0; absent < 3; ++absent) {
    SCOPED_TRACE(absent);
    Ranks ranks({"1F1B", 3, 1, 3}, {.timeout = std::chrono::milliseconds(500)});
    ranks.run([&](Runner& runner, Rank rank) {
      if (rank.value() != absent) ranks.step(runner, rank);
    });
    int timeouts = 0;
    for (int32_t r = 0; r < 3; ++r) {
      if (r == absent) continue;
      const std::string message = message_of(ranks.thrown(r));
      EXPECT_LT(ranks.seconds(r), kSpmdAtOnce);
      if (is_a<TimeoutError>(ranks.thrown(r))) {
        ++timeouts;
        EXPECT_THAT(message, testing::StartsWith("rank " + std::to_string(r) +
                                                 ", at the beginning of the step: "));
        EXPECT_THAT(message, testing::ContainsRegex("for ranks? .*" + std::to_string(absent)));
      } else {
        EXPECT_TRUE(is_a<PeerError>(ranks.thrown(r))) << message;
      }
    }
    EXPECT_GE(timeouts, 1);
    // The one that was missing hears of it when it comes.
    const std::exception_ptr late =
        thrown_by([&] { ranks.step(ranks.runner(absent), Rank(absent)); });
    EXPECT_TRUE(is_a<PeerError>(late)) << message_of(late);
    for (const at::Tensor& grad : take_grads(ranks.model().bodies)) EXPECT_FALSE(grad.defined());
    ranks.probe().take_num_alive();
    ranks.expect_good_step();
  }
}

// Both say where, whichever told the world first.
TEST(SpmdFailure, TwoRanksMissADeadlineAtOnce) {
  for (const int n : {0, 1}) {  // where they compare pipelines, where they begin the step
    SCOPED_TRACE(n);
    Ranks ranks({"1F1B", 2, 1, 3});
    ranks.end(1).fail(Call::kAllGather, n, [&] {
      ranks.end(1).abort({Rank(0), "rank 0, at the beginning of the step: it waited in vain"});
      throw TimeoutError("it waited in vain too");
    });
    ranks.step();
    ranks.expect_clean_failure();
    EXPECT_TRUE(is_a<PeerError>(ranks.thrown(0))) << message_of(ranks.thrown(0));
    EXPECT_TRUE(is_a<TimeoutError>(ranks.thrown(1))) << message_of(ranks.thrown(1));
    EXPECT_EQ(message_of(ranks.thrown(1)),
              "rank 1, at the beginning of the step: it waited in vain too");
    ranks.expect_good_step();
  }
}

TEST(SpmdFailure, ACallbackCannotBeginAStep) {
  Ranks ranks({"1F1B", 2, 1, 3});
  bool is_on = true;
  ranks.runner(1).callbacks().observe([&](Rank rank, Action, ActionPhase) {
    if (is_on) ranks.step(ranks.runner(1), rank);
  });
  ranks.step();
  ranks.expect_clean_failure();
  EXPECT_THAT(message_of(ranks.thrown(1)),
              testing::HasSubstr("a step of this runner is in progress"));
  is_on = false;
  ranks.expect_good_step();
}

TEST(SpmdFailure, TheTimeoutNamesTheRankThatIsMissing) {
  Ranks ranks({"GPipe", 2, 1, 2}, {.timeout = std::chrono::milliseconds(200)});
  const Stopwatch watch;
  const std::exception_ptr thrown = thrown_by([&] { ranks.step(ranks.runner(0), Rank(0)); });
  EXPECT_LT(watch.seconds(), kSpmdAtOnce);
  EXPECT_GE(watch.seconds(), 0.2);
  EXPECT_TRUE(is_a<TimeoutError>(thrown));
  EXPECT_THAT(message_of(thrown), testing::StartsWith("rank 0, at the beginning of the step: "));
  EXPECT_THAT(message_of(thrown), testing::HasSubstr("for rank 1"));
}

}  // namespace
}  // namespace stagecraft
