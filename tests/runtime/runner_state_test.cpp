// The states of a runner, without a world.

#include "stagecraft/runtime/runner_state.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace stagecraft {
namespace {

using State = RunnerState::State;

constexpr std::array kAll = {State::kNew,       State::kReady,  State::kPreparing, State::kAgreeing,
                             State::kExecuting, State::kEnding, State::kFailed};
constexpr std::array kStep = {State::kPreparing, State::kAgreeing, State::kExecuting,
                              State::kEnding};

// A runner that has moved through these states.
RunnerState after(const std::vector<State>& path) {
  RunnerState runner;
  for (const State next : path) runner.move_to(next);
  return runner;
}

std::vector<State> path_to(State state) {
  if (state == State::kNew) return {};
  std::vector<State> path(kStep.begin(), kStep.end());
  if (state == State::kFailed) return {State::kPreparing, State::kFailed};
  if (state == State::kReady) {
    path.push_back(State::kReady);
    return path;
  }
  path.erase(std::find(path.begin(), path.end(), state) + 1, path.end());
  return path;
}

TEST(RunnerState, AStepMeetsAtItsBeginningAndItsEnd) {
  RunnerState runner;
  EXPECT_TRUE(runner.is_new());
  EXPECT_EQ(runner.meeting(), nullptr);
  runner.move_to(State::kPreparing);
  EXPECT_TRUE(runner.is_in_step());
  EXPECT_EQ(runner.meeting(), nullptr);
  runner.move_to(State::kAgreeing);
  EXPECT_STREQ(runner.meeting(), "at the beginning of the step");
  runner.move_to(State::kExecuting);
  EXPECT_EQ(runner.meeting(), nullptr);
  runner.move_to(State::kEnding);
  EXPECT_STREQ(runner.meeting(), "at the end of the step");
  runner.move_to(State::kReady);
  EXPECT_FALSE(runner.is_in_step());
  EXPECT_FALSE(runner.is_new());
  runner.move_to(State::kPreparing);
}

TEST(RunnerState, AStepMayFailAnywhereAndThenRecovers) {
  for (const State state : kStep) {
    RunnerState runner = after(path_to(state));
    runner.move_to(State::kFailed);
    EXPECT_TRUE(runner.is_failed());
    EXPECT_FALSE(runner.is_in_step());
    runner.move_to(State::kNew);
    EXPECT_TRUE(runner.is_new());
    runner.move_to(State::kPreparing);
  }
}

TEST(RunnerStateDeathTest, OtherTransitionsAreRefused) {
  const std::vector<std::pair<State, State>> allowed = {
      {State::kNew, State::kNew},          {State::kNew, State::kPreparing},
      {State::kReady, State::kNew},        {State::kReady, State::kPreparing},
      {State::kPreparing, State::kFailed}, {State::kPreparing, State::kAgreeing},
      {State::kAgreeing, State::kFailed},  {State::kAgreeing, State::kExecuting},
      {State::kExecuting, State::kFailed}, {State::kExecuting, State::kEnding},
      {State::kEnding, State::kFailed},    {State::kEnding, State::kReady},
      {State::kFailed, State::kNew}};
  for (const State from : kAll) {
    for (const State to : kAll) {
      RunnerState runner = after(path_to(from));
      ASSERT_EQ(runner.state(), from);
      if (std::find(allowed.begin(), allowed.end(), std::pair(from, to)) != allowed.end()) {
        runner.move_to(to);
        EXPECT_EQ(runner.state(), to);
      } else {
        EXPECT_DEATH(runner.move_to(to), "SC_ASSERT");
      }
    }
  }
}

}  // namespace
}  // namespace stagecraft
