#include "stagecraft/runtime/rank_threads.h"

#include <atomic>
#include <stdexcept>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

// The threads share the counters.
struct Counters {
  std::atomic<int> copies{0};
  std::atomic<int> started{0};
};

// A thread takes a copy or two before it is started. A late copy fails, as a thread does that the
// system cannot start.
class StartOfSome {
 public:
  explicit StartOfSome(Counters& counters) : counters_(counters) {}
  StartOfSome(const StartOfSome& other) : counters_(other.counters_) {
    if (++counters_.copies > 4) throw std::runtime_error("no thread");
  }
  StartOfSome(StartOfSome&& other) noexcept = default;
  ~StartOfSome() = default;
  StartOfSome& operator=(const StartOfSome&) = delete;
  StartOfSome& operator=(StartOfSome&&) = delete;

  void operator()(Rank /*rank*/) const { ++counters_.started; }

 private:
  Counters& counters_;
};

TEST(RankThreads, EndIfOneOfThemCannotBeStarted) {
  Counters counters;
  EXPECT_ERROR(RankThreads(8, StartOfSome(counters)), std::runtime_error, "no thread");
  // The others were started and joined: otherwise the process would have ended.
  EXPECT_GE(counters.started, 1);
  EXPECT_LT(counters.started, 8);
}

}  // namespace
}  // namespace stagecraft
