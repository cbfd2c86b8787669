#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "stagecraft/base/deadline.h"
#include "stagecraft/base/index.h"
#include "stagecraft/transport/core/transfer_id.h"

namespace stagecraft {

/// Calls body(Rank) on a thread for each rank and joins them. What a body throws is a failure.
template <typename Body>
void run_ranks(int32_t ranks, const Body& body) {
  std::vector<std::thread> threads;
  for (Rank rank(0); rank.value() < ranks; ++rank) {
    threads.emplace_back([&body, rank] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << " threw: " << error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

/// Long enough for any wait that is to succeed.
inline Deadline soon() {
  return Deadline::after(std::chrono::seconds(20));
}
/// For waits that are to fail.
inline Deadline at_once() {
  return Deadline::after(std::chrono::milliseconds(20));
}

/// The values of stage 0 for stage 1.
inline TransferId values_of(int32_t microbatch, uint64_t step = 0) {
  return {step, Direction::kForward, StageId(0), StageId(1), MicrobatchId(microbatch)};
}

}  // namespace stagecraft
