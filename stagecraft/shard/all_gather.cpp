#include "stagecraft/shard/all_gather.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "stagecraft/base/check.h"
#include "stagecraft/tree/describe.h"

namespace stagecraft {

AllGather::AllGather(Transport& transport, const ShardGroup& group, const TransferId& id,
                     at::Tensor whole, const at::Tensor& own, int64_t chunk_bytes,
                     std::optional<bool> places_late)
    : transport_(transport),
      group_(group),
      id_(id),
      whole_(std::move(whole)),
      own_(own.detach()),
      chunk_(std::max<int64_t>(chunk_bytes / static_cast<int64_t>(own.element_size()), 1)),
      num_chunks_((own_.numel() + chunk_ - 1) / chunk_),
      places_late_(places_late.value_or(!own.device().is_cpu())),
      receives_(static_cast<std::size_t>(num_chunks_)) {
  require<ArgumentError>(num_chunks_ <= kShardMaxChunks, "a piece of {} bytes is too large",
                         own_.nbytes());
  for (int64_t chunk = 0; chunk < std::min(kShardWindow, num_chunks_); ++chunk) post(chunk);
}

TransferId AllGather::id_of(int64_t chunk) const {
  TransferId id = id_;
  id.microbatch =
      MicrobatchId(id_.microbatch.value() * kShardMaxChunks + static_cast<int32_t>(chunk));
  return id;
}

int64_t AllGather::size_of(int64_t chunk) const {
  return std::min(chunk_, own_.numel() - begin_of(chunk));
}

void AllGather::post(int64_t chunk) {
  auto& receives = receives_[static_cast<std::size_t>(chunk)];
  receives.resize(group_.members.size());
  for (int32_t m = 0; m < group_.size(); ++m) {
    if (m == group_.own) continue;
    receives[static_cast<std::size_t>(m)] = transport_.post_receive(group_.rank(m), id_of(chunk));
    sends_.push_back(transport_.post_send(group_.rank(m), id_of(chunk),
                                          own_.narrow(0, begin_of(chunk), size_of(chunk))));
  }
}

bool AllGather::has_arrived(int64_t chunk) const {
  const auto& receives = receives_[static_cast<std::size_t>(chunk)];
  return std::all_of(receives.begin(), receives.end(),
                     [](const PendingPtr& each) { return !each || each->is_done(); });
}

void AllGather::place(int64_t chunk, Deadline deadline) {
  const at::NoGradGuard no_grad;
  for (int32_t m = 0; m < group_.size(); ++m) {
    if (m == group_.own) continue;
    const PendingPtr receive =
        std::move(receives_[static_cast<std::size_t>(chunk)][static_cast<std::size_t>(m)]);
    const Received received = transport_.wait_receive(receive, deadline);
    require<MetadataError>(received.value.isTensor() &&
                               received.value.toTensor().numel() == size_of(chunk) &&
                               received.value.toTensor().scalar_type() == own_.scalar_type(),
                           "stage {}: replica {} has a piece of weights of a different size: "
                           "expected {} elements of {}, got {}",
                           id_.from.value(), m, size_of(chunk), c10::toString(own_.scalar_type()),
                           describe(received.value));
    whole_.narrow(0, m * own_.numel() + begin_of(chunk), size_of(chunk))
        .copy_(received.value.toTensor());
    sent_ = std::max(sent_, received.sent);
  }
  if (chunk + kShardWindow < num_chunks_) post(chunk + kShardWindow);
}

// Places chunks in order, up to `end`, as long as they have arrived.
void AllGather::place_arrived(int64_t end) {
  const Deadline deadline(Deadline::Clock::time_point::max());
  while (placed_ < end && has_arrived(placed_)) {
    place(placed_, deadline);
    ++placed_;
  }
}

void AllGather::advance() {
  place_arrived(places_late_ ? num_chunks_ - kShardWindow : num_chunks_);
}

bool AllGather::poll() {
  place_arrived(num_chunks_);
  return is_done();
}

void AllGather::wait(Deadline deadline) {
  for (; !is_done(); ++placed_) place(placed_, deadline);
}

std::vector<PendingPtr> AllGather::take_sends() {
  return std::exchange(sends_, {});
}

}  // namespace stagecraft
