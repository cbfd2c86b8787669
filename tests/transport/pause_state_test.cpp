// The pause of MPI's progress thread, without the thread.

#include "stagecraft/transport/mpi/pause_state.h"

#include <gtest/gtest.h>

namespace stagecraft::detail {
namespace {

using Pause = PauseState::State;

TEST(PauseState, ALongPauseIsEndedOnce) {
  PauseState pause;
  EXPECT_EQ(pause.state(), Pause::kPolling);
  pause.begin(/*is_long=*/true);
  EXPECT_EQ(pause.state(), Pause::kLong);
  EXPECT_TRUE(pause.can_be_woken());
  EXPECT_FALSE(pause.is_woken());
  EXPECT_TRUE(pause.wake());
  EXPECT_EQ(pause.state(), Pause::kWoken);
  EXPECT_TRUE(pause.is_woken());
  EXPECT_FALSE(pause.can_be_woken());
  EXPECT_FALSE(pause.wake());
  pause.end();
  EXPECT_EQ(pause.state(), Pause::kPolling);
}

TEST(PauseState, ALongPauseMayTakeItsTime) {
  PauseState pause;
  pause.begin(/*is_long=*/true);
  pause.end();
  EXPECT_EQ(pause.state(), Pause::kPolling);
  EXPECT_FALSE(pause.is_woken());
}

TEST(PauseState, AShortPauseIsNotEnded) {
  PauseState pause;
  pause.begin(/*is_long=*/false);
  EXPECT_EQ(pause.state(), Pause::kShort);
  EXPECT_FALSE(pause.can_be_woken());
  EXPECT_FALSE(pause.wake());
  EXPECT_EQ(pause.state(), Pause::kShort);
  pause.end();
  EXPECT_EQ(pause.state(), Pause::kPolling);
}

TEST(PauseState, AThreadThatPollsIsNotWoken) {
  PauseState pause;
  EXPECT_FALSE(pause.wake());
  pause.begin(/*is_long=*/true);
  EXPECT_FALSE(pause.is_woken()) << "the wake came before the pause";
}

TEST(PauseStateDeathTest, OtherTransitionsAreRefused) {
  PauseState pause;
  EXPECT_DEATH(pause.end(), "SC_ASSERT");
  pause.begin(/*is_long=*/true);
  EXPECT_DEATH(pause.begin(/*is_long=*/false), "SC_ASSERT");
  pause.wake();
  EXPECT_DEATH(pause.begin(/*is_long=*/true), "SC_ASSERT");
}

}  // namespace
}  // namespace stagecraft::detail
