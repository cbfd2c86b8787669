#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stagecraft/schedule/slot.h"
#include "tests/runtime/faults.h"
#include "tests/runtime/harness.h"

// Every schedule, every kind of action that its lowered lists have, the first, middle and last
// microbatch, every rank: the step fails there, says so, and leaves nothing behind.

namespace stagecraft {
namespace {

constexpr double kMatrixAtOnce =
    5;  // seconds; the timeout is 60, the goal 1, the machine may be busy

// Throws when a rank begins the action at an offset of its list.
class Trap {
 public:
  explicit Trap(int32_t ranks) : seen_(static_cast<std::size_t>(ranks)) {}

  void set(Rank rank, std::size_t offset) {
    rank_ = rank;
    offset_ = offset;
    is_set_ = true;
    for (std::size_t& seen : seen_) seen = 0;
  }
  bool has_sprung() const { return !is_set_; }
  void look(Rank rank, ActionPhase phase) {
    if (phase != ActionPhase::kBegin) return;
    const std::size_t offset = seen_[static_cast<std::size_t>(rank.value())]++;
    if (!is_set_ || rank != rank_ || offset != offset_) return;
    is_set_ = false;
    throw Boom();
  }

 private:
  Rank rank_;
  std::size_t offset_ = 0;
  std::atomic<bool> is_set_ = false;
  std::vector<std::size_t> seen_;  // each rank its own
};

// Where the kinds of a rank's list are tried: those of a microbatch in the first, middle and last
// one, others at their first, middle and last occurrence.
std::vector<std::size_t> places_to_fail(std::span<const Action> list, int32_t microbatches) {
  std::map<ActionType, std::vector<std::size_t>> occurrences;
  for (std::size_t i = 0; i < list.size(); ++i) occurrences[list[i].type()].push_back(i);
  const std::array<int32_t, 3> chosen = {0, microbatches / 2, microbatches - 1};
  std::set<std::size_t> places;
  for (const auto& [type, offsets] : occurrences) {
    if (!has_microbatch(type)) {
      places.insert({offsets.front(), offsets[offsets.size() / 2], offsets.back()});
      continue;
    }
    for (const int32_t m : chosen) {
      const auto found = std::ranges::find_if(
          offsets, [&](std::size_t i) { return list[i].microbatch().value() == m; });
      if (found != offsets.end()) places.insert(*found);
    }
  }
  return {places.begin(), places.end()};
}

// What went wrong with a failure at that place, or nothing.
std::string check_error(const std::exception_ptr& thrown, Rank rank, std::span<const Action> list,
                        std::size_t offset) {
  const auto error = find_stage_error(thrown);
  if (!error) return "expected a StageError, got: " + message_of(thrown);
  const Action action = list[offset];
  std::string text = to_string(action);
  if (action.is_overlap()) {
    // Its parts say which stages and microbatches.
    text = to_string(slot_at(list, offset));
  } else {
    if (error->place().stage != action.stage()) return "another stage";
    if (has_microbatch(action.type()) && error->place().microbatch != action.microbatch()) {
      return "another microbatch";
    }
    const std::string stage = "stage " + to_string(action.stage());
    if (std::string(error->what()).find(stage) == std::string::npos) return "no stage named";
  }
  if (error->place().rank != rank) return "another rank";
  if (error->place().action != text) return "another action: " + error->place().action;
  if (!is_a<Boom>(error->cause())) return "another cause: " + message_of(error->cause());
  for (const std::string& part : {"rank " + to_string(rank), text, std::string("boom")}) {
    if (std::string(error->what()).find(part) == std::string::npos) {
      return "the message does not say '" + part + "': " + error->what();
    }
  }
  return {};
}

struct Totals {
  int cases = 0;
  double slowest = 0;
  std::set<ActionType> kinds;
};

void try_all_places(const ScheduleCase& shape, bool is_training, Totals& totals) {
  SCOPED_TRACE(to_string(shape));
  const auto probe = std::make_shared<Probe>();
  const TestModel model = probed_chain(shape.stages(), probe);
  const Microbatches batch = random_batch(shape.microbatches, 3 * shape.microbatches, 5, 7);
  Trap trap(shape.ranks);
  Pipeline pipeline = make_pipeline(model, shape);
  pipeline.callbacks().observe(
      [&trap](Rank rank, Action, ActionPhase phase) { trap.look(rank, phase); });
  const StepOptions options{.outputs = OutputMode::kNone};
  auto run = [&] {
    static_cast<void>(is_training ? pipeline.step(batch, options) : pipeline.eval(batch, options));
  };

  pipeline.step(batch, options);
  take_grads(model.bodies);
  const std::vector<at::Tensor> expected = cut_grads(model, batch, pipeline.recording().schedule);
  run();
  take_grads(model.bodies);
  const Schedule schedule = pipeline.recording().schedule;
  for (Rank rank(0); rank.value() < shape.ranks; ++rank) {
    const std::span<const Action> list = schedule.actions(rank);
    for (const std::size_t offset : places_to_fail(list, shape.microbatches)) {
      SCOPED_TRACE("rank " + to_string(rank) + ", " + to_string(list[offset]));
      probe->take_num_alive();
      trap.set(rank, offset);
      const Stopwatch watch;
      const std::exception_ptr thrown = thrown_by(run);
      totals.slowest = std::max(totals.slowest, watch.seconds());
      ASSERT_TRUE(trap.has_sprung());
      EXPECT_EQ(check_error(thrown, rank, list, offset), "");
      EXPECT_EQ(probe->take_num_alive(), 0U);
      EXPECT_EQ(num_pending(pipeline), 0U);
      for (const at::Tensor& grad : take_grads(model.bodies)) EXPECT_FALSE(grad.defined());

      pipeline.step(batch, options);
      ASSERT_EQ(difference("gradient", take_grads(model.bodies), expected), "");
      ++totals.cases;
      totals.kinds.insert(list[offset].type());
    }
  }
}

TEST(FailureMatrix, AnyActionOfAnyScheduleOnAnyRank) {
  Totals totals;
  for (const int32_t ranks : {2, 3}) {
    for (const ScheduleCase& shape : training_cases(ranks)) try_all_places(shape, true, totals);
  }
  std::printf("%d failures, the slowest took %.3f s\n", totals.cases, totals.slowest);
  EXPECT_LT(totals.slowest, kMatrixAtOnce);
  EXPECT_GT(totals.cases, 800);
  // F, I, W, B, four transfers, UNSHARD, RESHARD, REDUCE_GRAD, OVERLAP_F_B.
  EXPECT_EQ(totals.kinds.size(), 12U);
}

TEST(FailureMatrix, AnyActionOfAnEvaluation) {
  Totals totals;
  for (const ScheduleCase& shape : training_cases(2)) try_all_places(shape, false, totals);
  EXPECT_LT(totals.slowest, kMatrixAtOnce);
  EXPECT_GT(totals.cases, 80);
}

}  // namespace
}  // namespace stagecraft
