#include "stagecraft/base/detached.h"

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>
#include <pthread.h>

namespace stagecraft::detail {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::string own_name() {
  std::array<char, 16> name{};
  pthread_getname_np(pthread_self(), name.data(), name.size());
  return name.data();
}

TEST(Detached, ReturnsTheResultOfANamedThread) {
  const auto name = run_detached("sc test", own_name, Deadline::after(seconds(20)));
  ASSERT_TRUE(name.has_value());
  EXPECT_EQ(*name, "sc test");
}

TEST(Detached, KeepsTheFirstCharactersOfALongName) {
  EXPECT_EQ(start_detached("a name that is too long", own_name).get(), "a name that is ");
}

TEST(Detached, RethrowsAnException) {
  const auto call = []() -> int { throw std::runtime_error("no route"); };
  EXPECT_THROW(run_detached("sc test", call, Deadline::after(seconds(20))), std::runtime_error);
}

TEST(Detached, AbandonsACallAtTheDeadline) {
  const auto may_end = std::make_shared<std::atomic<bool>>(false);
  const auto has_ended = std::make_shared<std::promise<void>>();
  const auto call = [may_end, has_ended] {
    while (!*may_end) std::this_thread::sleep_for(milliseconds(1));
    has_ended->set_value();
    return 1;
  };
  EXPECT_FALSE(run_detached("sc test", call, Deadline::after(milliseconds(20))).has_value());
  *may_end = true;
  EXPECT_EQ(has_ended->get_future().wait_for(seconds(20)), std::future_status::ready);
}

TEST(Deadline, TakesAnyDuration) {
  EXPECT_FALSE(Deadline::after(std::chrono::nanoseconds::max()).has_passed());
  EXPECT_FALSE(Deadline::after(seconds(100)).has_passed());
  EXPECT_TRUE(Deadline::after(seconds(-1)).has_passed());
}

}  // namespace
}  // namespace stagecraft::detail
