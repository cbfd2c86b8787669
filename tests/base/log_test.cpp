#include "stagecraft/base/log.h"

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stagecraft {
namespace {

class Log : public testing::Test {
 protected:
  void SetUp() override {
    set_log_sink([this](LogLevel, std::string_view message) { lines_.emplace_back(message); });
  }
  void TearDown() override {
    set_log_sink({});
    set_log_level(LogLevel::kOff);
  }
  std::vector<std::string> lines_;
};

TEST_F(Log, IsSilentByDefault) {
  ASSERT_EQ(std::getenv("STAGECRAFT_LOG"), nullptr) << "unset it to run the tests";
  log(LogLevel::kError, "lost");
  EXPECT_FALSE(log_enabled(LogLevel::kError));
  EXPECT_TRUE(lines_.empty());
}

TEST_F(Log, PassesTheLevelAndAbove) {
  set_log_level(LogLevel::kWarning);
  log(LogLevel::kInfo, "quiet");
  log(LogLevel::kWarning, "careful");
  log(LogLevel::kError, "broken");
  log(LogLevel::kOff, "never");
  EXPECT_THAT(lines_, testing::ElementsAre("careful", "broken"));
}

TEST_F(Log, CallsTheSinkFromOneThreadAtATime) {
  set_log_level(LogLevel::kDebug);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 500; ++i) log(LogLevel::kInfo, "line");
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(lines_.size(), 2000u);
}

TEST_F(Log, LevelNamesAreInverse) {
  for (const auto* name : {"debug", "info", "warning", "error", "off"}) {
    ASSERT_TRUE(parse_log_level(name).has_value()) << name;
    EXPECT_EQ(to_string(*parse_log_level(name)), name);
  }
  EXPECT_FALSE(parse_log_level("loud").has_value());
  EXPECT_FALSE(parse_log_level("").has_value());
}

TEST(LogDeathTest, TheEnvironmentSwitchesItOnAndABadValueSaysSo) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto log_and_exit = [](const char* value) {
    setenv("STAGECRAFT_LOG", value, 1);
    log(LogLevel::kInfo, "hello");
    std::exit(0);
  };
  EXPECT_EXIT(log_and_exit("info"), testing::ExitedWithCode(0), "stagecraft info .* hello");
  EXPECT_EXIT(log_and_exit("loud"), testing::ExitedWithCode(0),
              "STAGECRAFT_LOG is \"loud\"; expected debug, info");
}

}  // namespace
}  // namespace stagecraft
