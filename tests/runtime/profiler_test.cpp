// The ranges that torch's profiler sees.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include <ATen/record_function.h>

#include "stagecraft/base/error.h"
#include "stagecraft/schedule/passes/lower.h"
#include "stagecraft/schedule/slot.h"
#include "tests/runtime/harness.h"

namespace stagecraft {
namespace {

// The names of all ranges "PP:...", by thread, with an "end" where they end.
class Ranges {
 public:
  using ByThread = std::map<uint64_t, std::vector<std::string>>;

  static void begin(const std::string& text) {
    const std::lock_guard lock(mutex());
    seen()[at::RecordFunction::currentThreadId()].push_back(text);
  }
  static ByThread take() {
    const std::lock_guard lock(mutex());
    return std::exchange(seen(), {});
  }
  static at::RecordFunctionCallback callback() {
    return at::RecordFunctionCallback(
               [](const at::RecordFunction& range) -> std::unique_ptr<at::ObserverContext> {
                 const std::string name = range.name();
                 if (name.starts_with("PP:")) begin(name);
                 return nullptr;
               },
               [](const at::RecordFunction& range, at::ObserverContext*) {
                 const std::string name = range.name();
                 if (name.starts_with("PP:")) begin("end " + name);
               })
        .scopes({at::RecordScope::USER_SCOPE});
  }

 private:
  static std::mutex& mutex() {
    static std::mutex mutex;
    return mutex;
  }
  static ByThread& seen() {
    static ByThread seen;
    return seen;
  }
};

// What a rank's list says: an overlap is around its parts.
std::vector<std::string> expected_ranges(const Schedule& schedule, Rank rank) {
  std::vector<std::string> names;
  const auto add = [&](const std::string& text) {
    names.push_back("PP:" + text);
    names.push_back("end PP:" + text);
  };
  for (const Slot& slot : schedule.slots(rank)) {
    const Action action = slot.actions().front();
    if (action.is_idle()) continue;
    if (!action.is_overlap()) {
      add(to_string(action));
      continue;
    }
    names.push_back("PP:" + to_string(slot));
    for (const Action part : slot.parts()) add(to_string(part));
    names.push_back("end PP:" + to_string(slot));
  }
  return names;
}

std::vector<std::vector<std::string>> all_expected(const Schedule& schedule) {
  std::vector<std::vector<std::string>> all;
  for (Rank rank(0); rank.value() < schedule.num_ranks(); ++rank) {
    all.push_back(expected_ranges(schedule, rank));
  }
  return all;
}

std::vector<std::vector<std::string>> by_thread(Ranges::ByThread seen) {
  std::vector<std::vector<std::string>> lists;
  for (auto& [thread, names] : seen) lists.push_back(std::move(names));
  return lists;
}

TEST(Profiler, SeesEveryActionOfEveryRank) {
  const at::CallbackHandle handle = at::addGlobalCallback(Ranges::callback());
  for (const ScheduleCase& shape : training_cases(3)) {
    SCOPED_TRACE(to_string(shape));
    const TestModel model = chain_model(shape.stages());
    const auto source = ScheduleSource::named(shape.name, shape.ranks, shape.stages_per_rank,
                                              LowerOptions{.target = LowerTarget::kTorch215});
    Pipeline pipeline = make_pipeline(model, {.source = source});
    const Microbatches batch = random_batch(shape.microbatches, 2 * shape.microbatches, 5, 1);
    Ranges::take();
    pipeline.step(batch);
    EXPECT_THAT(by_thread(Ranges::take()),
                testing::UnorderedElementsAreArray(all_expected(pipeline.recording().schedule)));
    pipeline.eval(batch);
    EXPECT_THAT(by_thread(Ranges::take()),
                testing::UnorderedElementsAreArray(all_expected(pipeline.recording().schedule)));
    take_grads(model.bodies);
  }
  at::removeCallback(handle);
}

// A callback of the caller's thread is one of the ranks' threads, too.
TEST(Profiler, OfTheCallersThread) {
  const TestModel model = chain_model(4);
  Pipeline pipeline = make_pipeline(model, {.schedule = "DualPipeV", .ranks = 2});
  const Microbatches batch = random_batch(6, 12, 5, 1);
  Ranges::take();
  const at::CallbackHandle handle = at::addThreadLocalCallback(Ranges::callback());
  pipeline.step(batch);
  at::removeCallback(handle);
  EXPECT_THAT(by_thread(Ranges::take()),
              testing::UnorderedElementsAreArray(all_expected(pipeline.recording().schedule)));
  pipeline.step(batch);
  EXPECT_TRUE(Ranges::take().empty());
}

// A handler's work is inside the range of its action, and a failed action ends its range.
TEST(Profiler, SeesHandlersAndFailures) {
  const TestModel model = chain_model(1);
  Pipeline pipeline = make_pipeline(model, {.schedule = "1F1B", .ranks = 1});
  bool must_fail = false;
  pipeline.callbacks().replace(ActionType::kBackward, [&](ActionContext& context) {
    Ranges::begin("handler");
    if (must_fail) throw std::runtime_error("broken");
    context.run_all();
  });
  const at::CallbackHandle handle = at::addGlobalCallback(Ranges::callback());
  Ranges::take();
  const Microbatches batch = random_batch(1, 2, 5, 1);
  pipeline.step(batch);
  const auto seen = by_thread(Ranges::take());
  ASSERT_EQ(seen.size(), 1U);
  EXPECT_THAT(seen[0], testing::IsSupersetOf({"PP:0F0", "PP:0REDUCE_GRAD"}));
  const auto at = std::find(seen[0].begin(), seen[0].end(), "PP:0B0");
  ASSERT_GE(seen[0].end() - at, 3);
  EXPECT_EQ(at[1], "handler");
  EXPECT_EQ(at[2], "end PP:0B0");
  must_fail = true;
  EXPECT_THROW(pipeline.step(batch), StageError);
  at::removeCallback(handle);
  EXPECT_EQ(by_thread(Ranges::take()).at(0).back(), "end PP:0B0");
}

}  // namespace
}  // namespace stagecraft
