#include "tests/runtime/retry_cases.h"

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <poll.h>
#include <stdexcept>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include <c10/core/GradMode.h>

#include "stagecraft/base/error.h"
#include "stagecraft/runtime/runner.h"
#include "tests/runtime/faults.h"
#include "tests/runtime/harness.h"

namespace stagecraft {
namespace {

constexpr int32_t kMicrobatches = 4;
// Longer than ctest and the support for processes let a test run: a test that waits for it fails.
constexpr std::chrono::minutes kTenMinutes(10);

/// One of two ranks, with a model of its own.
class RetryRank {
 public:
  RetryRank(Transport& transport, const std::string& schedule)
      : rank_(transport.rank()),
        source_(ScheduleSource::named(schedule, 2)),
        model_(probed_chain(2, probe_)),
        end_(transport),
        runner_(end_, stages_on(model_, source_.placement(), rank_),
                runner_options(model_, {.source = source_, .timeout = kTenMinutes, .seed = 7})) {}

  bool is_first() const { return rank_ == Rank(0); }
  Probe& probe() { return *probe_; }
  Runner& runner() { return runner_; }
  FaultyTransport& end() { return end_; }
  const TestModel& reference() const { return reference_; }

  void step(const Microbatches& batch) {
    runner_.step(part_of(batch, source_.placement(), rank_),
                 {.microbatches = kMicrobatches, .outputs = OutputMode::kNone});
  }
  /// The failed step has left nothing.
  void expect_nothing_left() {
    EXPECT_EQ(runner_.stage(StageId(rank_.value())).num_pending(), 0U);
    for (const at::Tensor& grad : own_grads()) EXPECT_FALSE(grad.defined());
  }
  /// On both ranks: the gradients are those of the batch.
  void expect_good_step(const Microbatches& batch) {
    step(batch);
    const Schedule schedule = *source_.training(kMicrobatches, StageGraph::chain(2));
    const std::vector<at::Tensor> all = cut_grads(reference_, batch, schedule);
    const std::size_t each = all.size() / 2;
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(is_first() ? 0 : each);
    const std::vector<at::Tensor> expected(begin, begin + static_cast<std::ptrdiff_t>(each));
    EXPECT_EQ(difference("gradient", own_grads(), expected), "");
  }

 private:
  std::vector<at::Tensor> own_grads() const {
    return take_grads({model_.bodies[static_cast<std::size_t>(rank_.value())]});
  }

  Rank rank_;
  ScheduleSource source_;
  std::shared_ptr<Probe> probe_ = std::make_shared<Probe>();
  TestModel model_;
  TestModel reference_ = chain_model(2);
  FaultyTransport end_;
  Runner runner_;
};

/// What the last stage computes of each microbatch.
std::vector<at::Tensor> outputs_of_batch(const TestModel& model, const Microbatches& batch) {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> outputs;
  for (const Arguments& input : batch.inputs) {
    c10::IValue value = input.args[0];
    for (const StageBody& body : model.bodies) value = body.forward({value}, {});
    outputs.push_back(value.toTensor());
  }
  return outputs;
}

}  // namespace

Signal::Signal() {
  if (pipe(ends_) != 0) throw std::runtime_error("no pipe");
}

Signal::~Signal() {
  for (const int end : ends_) close(end);
}

void Signal::give() const {
  EXPECT_EQ(write(ends_[1], "", 1), 1);
}

bool Signal::wait() const {
  pollfd readable{ends_[0], POLLIN, 0};
  return poll(&readable, 1, 60'000) == 1;
}

void check_untaken_sends(Transport& transport, const std::string& schedule, const Signal& posted) {
  RetryRank rank(transport, schedule);
  // So large that processes send it only when it is received.
  const Microbatches large = random_batch(kMicrobatches, kMicrobatches * 30'000, 5, 1);
  const Microbatches small = random_batch(kMicrobatches, kMicrobatches * 3, 5, 2);
  // Rank 0 can compute two forwards of 1F1B, and all of GPipe, before it needs rank 1.
  const int32_t failing = schedule == "1F1B" ? 1 : 2;
  bool is_armed = true;
  rank.probe().set([&](StageId, MicrobatchId m, at::Tensor&) {
    if (!is_armed || !rank.is_first() || m.value() != failing) return;
    EXPECT_EQ(rank.end().count(FaultyTransport::Call::kPostSend), failing);
    posted.give();
    throw Boom();
  });
  rank.runner().callbacks().observe([&](Rank, Action, ActionPhase) {
    if (!is_armed || rank.is_first()) return;
    EXPECT_TRUE(posted.wait());
    EXPECT_EQ(rank.end().count(FaultyTransport::Call::kPostReceive), 0);
    throw Boom();
  });
  const std::exception_ptr thrown = thrown_by([&] { rank.step(large); });
  // Each is the first to fail, or hears of the other before its own failure.
  EXPECT_TRUE(is_a<StageError>(thrown) || is_a<PeerError>(thrown)) << message_of(thrown);
  EXPECT_THAT(message_of(thrown), testing::EndsWith(": boom"));
  rank.expect_nothing_left();
  is_armed = false;
  rank.expect_good_step(small);
}

void check_early_retry(Transport& transport, const std::string& schedule, const Signal& entered,
                       const Signal& retried) {
  RetryRank rank(transport, schedule);
  const Microbatches first = random_batch(kMicrobatches, kMicrobatches * 3, 5, 1);
  const Microbatches second = random_batch(kMicrobatches, kMicrobatches * 3, 5, 2);
  // The third forward of 1F1B's rank 0 comes after the first backward of rank 1.
  const int32_t held = schedule == "1F1B" ? 1 : 0;
  std::vector<std::pair<int32_t, at::Tensor>> computed;
  rank.probe().set([&](StageId, MicrobatchId m, at::Tensor& output) {
    computed.emplace_back(m.value(), output.detach().clone());
    if (rank.is_first() && m.value() == 2) {
      EXPECT_TRUE(entered.wait());
      throw Boom();
    }
    if (!rank.is_first() && m.value() == held) {
      entered.give();
      EXPECT_TRUE(retried.wait());
    }
  });
  const std::exception_ptr thrown = thrown_by([&] { rank.step(first); });
  rank.probe().set({});
  rank.expect_nothing_left();
  if (rank.is_first()) {
    EXPECT_TRUE(is_a<StageError>(thrown)) << message_of(thrown);
    EXPECT_EQ(computed.size(), 3U);
    retried.give();
  } else {
    EXPECT_TRUE(is_a<PeerError>(thrown)) << "the step ended, or threw: " << message_of(thrown);
    EXPECT_THAT(message_of(thrown), testing::HasSubstr("action 0F2: boom"));
    // Between processes the news may come after one more forward, which is of the first batch too.
    EXPECT_GT(computed.size(), static_cast<std::size_t>(held));
    const std::vector<at::Tensor> expected = outputs_of_batch(rank.reference(), first);
    for (const auto& [m, output] : computed) {
      EXPECT_EQ(difference("output", output, expected[static_cast<std::size_t>(m)]), "");
    }
  }
  rank.expect_good_step(second);
}

}  // namespace stagecraft
