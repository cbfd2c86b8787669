#include "stagecraft/runtime/step_transfers.h"

#include <optional>
#include <utility>

#include "stagecraft/base/check.h"
#include "stagecraft/runtime/values.h"
#include "stagecraft/tree/describe.h"

namespace stagecraft {

void StepTransfers::finish() {
  for (const PostedSend& send : sends_) wait_send(send.pending);
  sends_.clear();
}

void StepTransfers::clear() {
  sends_.clear();
  is_waiting_ = false;
}

void StepTransfers::wait_send(const PendingPtr& pending) {
  const ProgressMark::Waiting waiting(progress_, "others to receive its values");
  is_waiting_ = true;
  transport_.wait_send(pending, deadline());
  is_waiting_ = false;
}

void StepTransfers::wait_for_sends(Action send) {
  const auto is_awaited = [send](const PostedSend& posted) { return posted.action == send; };
  for (const PostedSend& posted : sends_) {
    if (is_awaited(posted)) wait_send(posted.pending);
  }
  std::erase_if(sends_, is_awaited);
}

void StepTransfers::post_send(Action send, Rank to, const TransferId& id,
                              std::vector<c10::IValue> values) {
  recorder_.add_sent(bytes_of(values));
  if (meter_ != nullptr) hand_over(meter_, values, meter_->accounts() - 1);
  PendingPtr pending = transport_.post_send(to, id, c10::ivalue::Tuple::create(std::move(values)));
  if (options_.zero_buffering) {
    wait_send(pending);
  } else if (!pending->is_done()) {
    sends_.push_back({send, std::move(pending)});
  }
}

std::vector<c10::IValue> StepTransfers::receive(const PendingPtr& pending, Rank from,
                                                const TransferId& id) {
  require<ArgumentError>(pending != nullptr, "no receive was posted for what the action needs");
  const bool waits = !pending->is_done();
  std::optional<ProgressMark::Waiting> waiting;
  if (waits) {
    recorder_.begin_wait(offset_);
    waiting.emplace(progress_, from, id);
  }
  is_waiting_ = true;
  Received received = transport_.wait_receive(pending, deadline());
  is_waiting_ = false;
  waiting.reset();
  if (waits) recorder_.end_wait(received.sent);
  if (!received.value.isTuple()) {
    throw MetadataError("expected a tuple of values, got " + describe(received.value));
  }
  std::vector<c10::IValue> values =
      std::move(*std::move(received.value).toTuple()).elements().vec();
  recorder_.add_received(bytes_of(values));
  hand_over(meter_, values, transport_.rank().value());
  return values;
}

}  // namespace stagecraft
