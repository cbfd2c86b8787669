#include "stagecraft/runtime/step_end.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "stagecraft/runtime/results.h"

namespace stagecraft {

namespace {

Deadline deadline(const StepEnd& end) {
  return Deadline::after(end.timeout);
}

// A rank of the last stage computed losses for its replica; the other ranks contribute none.
void gather_losses(const StepEnd& end, bool has_last_stage, StepResult& result) {
  StepResult own;
  if (has_last_stage) {
    own.losses = result.losses;
    own.weights = result.weights;
  }
  const std::vector<c10::IValue> all = end.transport.all_gather(to_value(own), deadline(end));
  if (!has_last_stage) return;
  result.losses.clear();
  result.weights.clear();
  for (int32_t replica = 0; replica < end.place.replicas; ++replica) {
    const StepResult each = result_of(all[end.place.in_replica(replica).position()]);
    // Losses of other processes and devices are copies.
    for (const at::Tensor& loss : each.losses) {
      result.losses.push_back(own.losses.empty() ? loss : loss.to(own.losses.front().device()));
    }
    result.weights.insert(result.weights.end(), each.weights.begin(), each.weights.end());
  }
}

}  // namespace

void end_step(const StepEnd& end, std::span<const StepAnnouncement> ranks, StepResult& result) {
  Transport& transport = end.transport;
  const StageId last(end.placement.num_stages() - 1);
  const Rank owner = end.place.in_world(end.placement.get_rank(last));
  const Rank self = transport.rank();
  {
    const ProgressMark::Waiting waiting(end.progress, "all ranks to end the step");
    if (end.place.replicas == 1) {
      transport.barrier(deadline(end));
    } else {
      gather_losses(end, self == owner, result);
    }
  }
  const auto id = [&](Rank reader) {
    return TransferId{end.step, Direction::kResult, last, last, MicrobatchId(reader.value())};
  };
  const ProgressMark::Waiting waiting(end.progress, "results of the step");
  if (self == owner) {
    std::vector<PendingPtr> sends;
    for (Rank own(0); own.value() < end.place.ranks; ++own) {
      const Rank reader = end.place.in_world(own);
      if (reader == owner || !ranks[reader.position()].everywhere) continue;
      sends.push_back(transport.post_send(reader, id(reader), to_value(result)));
    }
    for (const PendingPtr& send : sends) transport.wait_send(send, deadline(end));
  } else if (ranks[self.position()].everywhere) {
    const PendingPtr receive = transport.post_receive(owner, id(self));
    std::vector<at::Tensor> added = std::move(result.added_losses);
    result = result_of(transport.wait_receive(receive, deadline(end)).value);
    result.added_losses = std::move(added);
  }
  // No rank continues, and perhaps fails the next step, while another rank takes its results.
  const bool any =
      std::any_of(ranks.begin(), ranks.end(), [](const auto& rank) { return rank.everywhere; });
  if (any) transport.barrier(deadline(end));
}

}  // namespace stagecraft
