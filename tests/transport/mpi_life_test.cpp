// The life of MPI in a process, with a plug-in that stands for an MPI.

#include "stagecraft/transport/mpi/mpi_life.h"

#include <cstdio>
#include <vector>

#include <gtest/gtest.h>

namespace stagecraft::detail {
namespace {

using State = MpiLife::State;

// What the plug-in's functions return, and the states in which they are called.
struct Fake {
  int32_t start = 0;
  int32_t wait_for_all = 0;
  int32_t is_single_threaded = 0;
  const MpiLife* life = nullptr;
  std::vector<State> starts = {};
  std::vector<State> meetings = {};
  std::vector<State> ends = {};
};
Fake fake;

const MpiPlugin& plugin() {
  static const MpiPlugin made = [] {
    MpiPlugin table{};
    table.version = kMpiPluginVersion;
    table.name = "a fake";
    table.start = [](MpiFacts* facts, char* problem) {
      fake.starts.push_back(fake.life->state());
      facts->is_single_threaded = fake.is_single_threaded;
      if (fake.start != 0) std::snprintf(problem, kMpiProblemBytes, "no network");
      return fake.start;
    };
    table.wait_for_all = [] {
      fake.meetings.push_back(fake.life->state());
      return fake.wait_for_all;
    };
    table.finish = [] { fake.ends.push_back(fake.life->state()); };
    return table;
  }();
  return made;
}

class MpiLifeTest : public testing::Test {
 protected:
  MpiLifeTest() {
    fake = Fake();
    fake.life = &life_;
  }

  MpiLife life_{plugin()};
};
using MpiLifeDeathTest = MpiLifeTest;

TEST_F(MpiLifeTest, StartsOnce) {
  EXPECT_EQ(life_.state(), State::kStarting);
  EXPECT_FALSE(life_.is_running());
  life_.start();
  EXPECT_EQ(life_.state(), State::kRunning);
  EXPECT_TRUE(life_.is_running());
  EXPECT_EQ(life_.problem(), "");
  EXPECT_EQ(fake.starts, std::vector{State::kStarting});
}

TEST_F(MpiLifeTest, AnMpiThatDoesNotStartIsUnusable) {
  fake.start = 1;
  life_.start();
  EXPECT_EQ(life_.state(), State::kUnusable);
  EXPECT_EQ(life_.problem(), "no network");
  EXPECT_FALSE(life_.is_over());
}

TEST_F(MpiLifeTest, AnMpiForOneThreadIsUnusable) {
  fake.is_single_threaded = 1;
  life_.start();
  EXPECT_EQ(life_.state(), State::kUnusable);
  EXPECT_EQ(life_.problem(), "");
}

TEST_F(MpiLifeTest, FinalizesAfterAllHaveCome) {
  life_.start();
  life_.finish(/*can_meet=*/true);
  EXPECT_EQ(life_.state(), State::kEnded);
  EXPECT_TRUE(life_.is_over());
  EXPECT_EQ(fake.meetings, std::vector{State::kMeeting});
  EXPECT_EQ(fake.ends, std::vector{State::kFinalizing});
}

TEST_F(MpiLifeTest, FinalizesAloneIfTheRanksCannotMeet) {
  fake.wait_for_all = 1;
  life_.start();
  life_.finish(/*can_meet=*/false);
  EXPECT_EQ(life_.state(), State::kEnded);
  EXPECT_TRUE(fake.meetings.empty());
  EXPECT_EQ(fake.ends, std::vector{State::kFinalizing});
}

TEST_F(MpiLifeTest, IsStrandedIfTheMeetingFails) {
  fake.wait_for_all = 1;
  life_.start();
  life_.finish(/*can_meet=*/true);
  EXPECT_EQ(life_.state(), State::kStranded);
  EXPECT_FALSE(life_.is_over());
  EXPECT_TRUE(fake.ends.empty());
}

TEST_F(MpiLifeTest, MayBeLeftAsItIs) {
  life_.start();
  life_.leave();
  EXPECT_EQ(life_.state(), State::kLeft);
  EXPECT_TRUE(life_.is_over());
  EXPECT_FALSE(life_.is_running());
  EXPECT_TRUE(fake.ends.empty());
}

TEST_F(MpiLifeDeathTest, OtherTransitionsAreRefused) {
  EXPECT_DEATH(life_.leave(), "SC_ASSERT");
  EXPECT_DEATH(life_.finish(true), "SC_ASSERT");
  life_.start();
  EXPECT_DEATH(life_.start(), "SC_ASSERT");
  life_.leave();
  EXPECT_DEATH(life_.finish(false), "SC_ASSERT");
  EXPECT_DEATH(life_.leave(), "SC_ASSERT");
}

}  // namespace
}  // namespace stagecraft::detail
