#include <gtest/gtest.h>

#include "stagecraft/transport/local/local_world.h"
#include "tests/runtime/retry_cases.h"

// A step that fails on two ranks, and a step that one rank repeats before the other knows; over
// threads. gloo_pipeline_test.cpp has the same over processes.

namespace stagecraft {
namespace {

TEST(RetryFailure, SendsThatNoRankTakesDoNotHoldUpTheError) {
  for (const char* schedule : {"GPipe", "1F1B"}) {
    for (const bool zero_buffering : {false, true}) {
      SCOPED_TRACE(schedule);
      const Signal posted;
      LocalWorld world(2, {.zero_buffering = zero_buffering});
      world.run([&](Transport& transport) { check_untaken_sends(transport, schedule, posted); });
    }
  }
}

TEST(RetryFailure, AnEarlyRetryNeverMixesTwoBatches) {
  for (const char* schedule : {"GPipe", "1F1B"}) {
    for (const bool zero_buffering : {false, true}) {
      SCOPED_TRACE(schedule);
      const Signal entered;
      const Signal retried;
      LocalWorld world(2, {.zero_buffering = zero_buffering});
      world.run(
          [&](Transport& transport) { check_early_retry(transport, schedule, entered, retried); });
    }
  }
}

}  // namespace
}  // namespace stagecraft
