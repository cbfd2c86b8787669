#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>

#include "stagecraft/transport/transport.h"

namespace stagecraft::bench {

/// A request to the second of two processes.
struct Task {
  bool is_raw = false;  ///< through the communication library alone
  int64_t bytes = 0;
  int64_t rounds = 0;  ///< 0: no more requests follow
};

/// One end of a ping-pong through a transport of two ranks. Both post the next receive before they
/// send.
inline void play(Transport& transport, const Task& task, uint64_t step) {
  const auto soon = [] { return Deadline::after(std::chrono::seconds(60)); };
  const bool begins = transport.rank() == Rank(0);
  const Rank other(begins ? 1 : 0);
  const auto id = [&](int64_t i, bool there) {
    return TransferId{step, there ? Direction::kForward : Direction::kBackward, StageId(0),
                      StageId(1), MicrobatchId(static_cast<int32_t>(i))};
  };
  const auto out = at::ones({task.bytes}, at::kByte);
  auto receive = transport.post_receive(other, id(0, !begins));
  std::vector<PendingPtr> sends;
  for (int64_t i = 0; i < task.rounds; ++i) {
    if (begins) sends.push_back(transport.post_send(other, id(i, true), out));
    transport.wait_receive(receive, soon());
    if (i + 1 < task.rounds) receive = transport.post_receive(other, id(i + 1, !begins));
    if (!begins) sends.push_back(transport.post_send(other, id(i, false), out));
    if (sends.size() > 1) {
      transport.wait_send(sends.front(), soon());
      sends.erase(sends.begin());
    }
  }
  for (const auto& send : sends) transport.wait_send(send, soon());
}

}  // namespace stagecraft::bench
