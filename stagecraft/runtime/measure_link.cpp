#include "stagecraft/runtime/measure_link.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <limits>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>

#include "stagecraft/base/assert.h"
#include "stagecraft/runtime/measure_support.h"
#include "stagecraft/transport/local/local_world.h"

namespace stagecraft {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int32_t kWarmUpRounds = 4;
constexpr int32_t kRounds = 15;
/// The time of a value this small is all latency.
constexpr int64_t kSmall = 64;

/// One side of a ping-pong. Both sides post the next receive before they send. Returns half the
/// time of a median round, in milliseconds.
double play(Transport& transport, Rank other, bool begins, int64_t bytes, Deadline deadline) {
  const auto id = [](int32_t round, bool there) {
    return TransferId{std::numeric_limits<uint64_t>::max(),
                      there ? Direction::kForward : Direction::kBackward, StageId(0), StageId(1),
                      MicrobatchId(round)};
  };
  const at::Tensor value = at::ones({bytes}, at::kByte);
  std::vector<double> times;
  PendingPtr receive = transport.post_receive(other, id(0, !begins));
  for (int32_t round = 0; round < kWarmUpRounds + kRounds; ++round) {
    const auto start = Clock::now();
    PendingPtr send;
    if (begins) send = transport.post_send(other, id(round, true), value.clone());
    transport.wait_receive(receive, deadline);
    if (round + 1 < kWarmUpRounds + kRounds) {
      receive = transport.post_receive(other, id(round + 1, !begins));
    }
    if (!begins) send = transport.post_send(other, id(round, false), value.clone());
    transport.wait_send(send, deadline);
    const std::chrono::duration<double, std::milli> took = Clock::now() - start;
    if (round >= kWarmUpRounds) times.push_back(took.count() / 2);
  }
  return detail::median_of(std::move(times));
}

}  // namespace

LinkCost fit_link(const std::vector<int64_t>& sizes, const std::vector<double>& times) {
  SC_ASSERT(!sizes.empty() && times.size() == sizes.size());
  const auto count = static_cast<double>(sizes.size());
  double size = 0;
  double time = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    size += static_cast<double>(sizes[i]) / count;
    time += times[i] / count;
  }
  double above = 0;
  double below = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const double from_mean = static_cast<double>(sizes[i]) - size;
    above += from_mean * (times[i] - time);
    below += from_mean * from_mean;
  }
  LinkCost link;
  const double slope = below > 0 ? above / below : 0;
  if (slope <= 0) {
    link.latency = std::max(0.0, time);
    return link;
  }
  link.bandwidth = 1 / slope;
  link.latency = std::max(0.0, time - slope * size);
  return link;
}

LinkCost measure_link(Transport& transport, std::vector<int64_t> sizes, Deadline deadline) {
  const int32_t ranks = transport.num_ranks();
  if (ranks < 2) return {};
  sizes.push_back(kSmall);
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  const int32_t own = transport.rank().value();
  c10::List<double> times;
  const int32_t pairs = ranks == 2 ? 1 : ranks;
  for (int32_t first = 0; first < pairs; ++first) {
    const int32_t second = (first + 1) % ranks;
    transport.barrier(deadline);
    if (own != first && own != second) continue;
    for (const int64_t bytes : sizes) {
      const bool begins = own == first;
      const double time = play(transport, Rank(begins ? second : first), begins, bytes, deadline);
      if (begins) times.push_back(time);
    }
  }
  std::vector<std::vector<double>> by_size(sizes.size());
  for (const c10::IValue& value : transport.all_gather(c10::IValue(times), deadline)) {
    const c10::List<double> of_rank = value.toDoubleList();
    for (std::size_t i = 0; i < of_rank.size(); ++i) by_size[i].push_back(of_rank.get(i));
  }
  std::vector<double> medians;
  for (std::vector<double>& each : by_size) medians.push_back(detail::median_of(std::move(each)));
  return fit_link(sizes, medians);
}

LinkCost measure_local_link(int32_t ranks, const std::vector<int64_t>& sizes) {
  if (ranks < 2) return {};
  LinkCost link;
  LocalWorld world(ranks);
  world.run([&](Transport& transport) {
    const LinkCost measured =
        measure_link(transport, sizes, Deadline::after(std::chrono::minutes(1)));
    if (transport.rank() == Rank(0)) link = measured;
  });
  return link;
}

}  // namespace stagecraft
