#include "stagecraft/runtime/record/recorder.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/runtime/step_times.h"

namespace stagecraft {
namespace {

TEST(Recorder, KnowsWhatIsUnderWay) {
  Recorder recorder;
  EXPECT_EQ(recorder.current(), std::nullopt);
  recorder.start(4, kZero);
  recorder.begin(0);
  EXPECT_EQ(recorder.current(), 0U);
  recorder.begin(1);
  EXPECT_EQ(recorder.current(), 1U);
  recorder.end(1);
  EXPECT_EQ(recorder.current(), 0U);  // between parts, the overlap
  recorder.begin(2);
  recorder.end(2);
  recorder.end(0);
  EXPECT_EQ(recorder.current(), std::nullopt);
  recorder.begin(3);
  EXPECT_EQ(recorder.current(), 3U);
  recorder.end(3);
  EXPECT_EQ(recorder.current(), std::nullopt);
}

TEST(Recorder, TakesAnActionInsideItselfForOne) {
  Recorder recorder;
  recorder.start(3, kZero);
  recorder.begin(0, at(0));  // an overlap
  recorder.begin(1, at(1));  // a handler around its part
  recorder.begin(1, at(2));
  EXPECT_EQ(recorder.current(), 1U);
  recorder.end(1, at(3));
  recorder.end(1, at(4));
  EXPECT_EQ(recorder.current(), 0U);
  recorder.end(0, at(5));
  EXPECT_EQ(recorder.current(), std::nullopt);
  EXPECT_EQ(recorder.view().actions[1], (RankRecording::ActionTimes{1000, 4000, 0}));
}

TEST(Recorder, StopEndsWhatIsUnderWay) {
  Recorder recorder;
  recorder.start(3, kZero);
  recorder.begin(0, at(1));
  recorder.begin(1, at(2));
  recorder.begin_wait(1, at(3));
  recorder.stop(at(7));
  EXPECT_EQ(recorder.current(), std::nullopt);
  const std::vector<RankRecording::ActionTimes> times = {
      {1000, 7000, 0}, {2000, 7000, 4000}, {-1, -1, 0}};
  EXPECT_EQ(recorder.view().actions, times);
  EXPECT_EQ(recorder.view().waits, (std::vector<RankRecording::Wait>{{1, 3000, 7000, 7000}}));
  recorder.stop(at(9));
  EXPECT_EQ(recorder.view().actions, times);
}

TEST(Recorder, ForgetsTheStepBefore) {
  Recorder recorder;
  recorder.start(2, kZero);
  recorder.begin(1);
  recorder.begin_wait(1);
  recorder.add_sent(7);
  recorder.add_received(8);
  recorder.set_peak_memory(9);
  recorder.start(2, kZero);
  RankRecording empty;
  empty.actions.resize(2);
  EXPECT_EQ(recorder.view(), empty);
  EXPECT_EQ(recorder.current(), std::nullopt);
}

TEST(Recorder, AllocatesAtTheStartOnly) {
  Recorder recorder;
  recorder.start(20, kZero);
  const auto* actions = recorder.view().actions.data();
  const auto* waits = recorder.view().waits.data();
  for (int step = 0; step < 2; ++step) {
    for (std::size_t i = 0; i < 20; ++i) {
      recorder.begin(i);
      for (int wait = 0; wait < 2; ++wait) {
        recorder.begin_wait(i);
        recorder.end_wait(kZero);
      }
      recorder.end(i);
    }
    EXPECT_EQ(recorder.view().waits.size(), 40U);
    EXPECT_EQ(recorder.view().actions.data(), actions);
    EXPECT_EQ(recorder.view().waits.data(), waits);
    recorder.start(20, kZero);
  }
}

TEST(Recorder, TakesTimesFromTheClock) {
  Recorder recorder;
  const auto zero = Recorder::Clock::now();
  recorder.start(1, zero);
  recorder.begin(0);
  recorder.begin_wait(0);
  recorder.end_wait(zero);
  recorder.end(0);
  const int64_t last = (Recorder::Clock::now() - zero) / std::chrono::nanoseconds(1);
  const RankRecording& view = recorder.view();
  EXPECT_LE(0, view.actions[0].begin);
  EXPECT_LE(view.actions[0].begin, view.waits[0].begin);
  EXPECT_LE(view.waits[0].begin, view.waits[0].end);
  EXPECT_LE(view.waits[0].end, view.actions[0].end);
  EXPECT_LE(view.actions[0].end, last);
  EXPECT_EQ(view.actions[0].waited, view.waits[0].end - view.waits[0].begin);
}

TEST(Recorder, CanBeWatchedByAnotherThread) {
  constexpr std::size_t kActions = 64;
  Recorder recorder;
  std::atomic<bool> done = false;
  std::atomic<std::size_t> seen = 0;
  std::thread watcher([&] {
    while (!done.load()) {
      if (const auto offset = recorder.current()) {
        EXPECT_LT(*offset, kActions);
        ++seen;
      }
    }
  });
  const auto limit = Recorder::Clock::now() + std::chrono::seconds(30);
  for (int step = 0; (step < 200 || seen == 0) && Recorder::Clock::now() < limit; ++step) {
    recorder.start(kActions, Recorder::Clock::now());
    for (std::size_t i = 0; i < kActions; ++i) {
      recorder.begin(i);
      recorder.begin_wait(i);
      recorder.end_wait(Recorder::Clock::now());
      recorder.end(i);
    }
    EXPECT_EQ(step % 2 == 0 ? recorder.take().actions.size() : kActions, kActions);
  }
  done = true;
  watcher.join();
  EXPECT_GT(seen, 0U);
}

}  // namespace
}  // namespace stagecraft
