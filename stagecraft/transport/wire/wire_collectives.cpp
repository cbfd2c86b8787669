// The collectives of a wire transport. Rank 0 coordinates them (meeting_point.h), and small values
// travel with its messages. Large values travel between the ranks afterwards, as transfers.

#include <cstring>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "stagecraft/base/check.h"
#include "stagecraft/transport/wire/packed_value.h"
#include "stagecraft/transport/wire/wire_transport.h"

namespace stagecraft::detail {
namespace {

// The largest value, in bytes, that travels with the messages of rank 0.
// Rank 0 sends every contribution to every rank: with 64 ranks 64 * 64 * 4 KiB = 16 MiB.
// Contributions of 16 ranks fit in one frame (72 KiB).
constexpr std::size_t kMaxPacked = 4096;
// The first byte of a contribution: the value is in it, or it follows as a transfer.
constexpr char kHere = 'H';
constexpr char kLater = 'L';

std::string bring(const c10::IValue& value) {
  const auto encoded = encode(value);
  return num_bytes(encoded) <= kMaxPacked ? kHere + pack(encoded) : std::string(1, kLater);
}
bool is_here(const std::string& brought) {
  return !brought.empty() && brought.front() == kHere;
}
c10::IValue value_of(const std::string& brought) {
  return unpack(std::string_view(brought).substr(1));
}

// The id of a transfer that belongs to a collective. The runtime does not use these directions.
TransferId id_of(uint64_t meeting, uint8_t phase, Rank from, Rank to) {
  return {meeting, static_cast<Direction>(128 + phase), StageId(from.value()), StageId(to.value()),
          MicrobatchId(0)};
}

std::string describe_layout(const TensorLayout& layout) {
  return fmt::format("{} of shape [{}]", c10::toString(layout.dtype),
                     fmt::join(layout.sizes, ", "));
}

// Part i of n equal parts.
at::Tensor part_of(const at::Tensor& flat, int64_t i, int64_t n) {
  const int64_t begin = flat.numel() * i / n;
  return flat.narrow(0, begin, flat.numel() * (i + 1) / n - begin);
}

}  // namespace

// Called before a collective for values that were received earlier, so that none of them can be
// lost when the collective has returned. Called after a collective for its own values.
void WireTransport::settle(Deadline deadline) {
  if (link_) link_->settle(deadline);
}

void WireTransport::barrier(Deadline deadline) {
  settle(deadline);
  meet(/*is_recovery=*/false, "barrier", {}, deadline);
}

c10::IValue WireTransport::broadcast(c10::IValue value, Rank root, Deadline deadline) {
  exchange_.require_rank(root, "broadcast");
  settle(deadline);
  const bool is_root = root == rank_;
  const auto met = meet(false, fmt::format("broadcast from rank {}", root.value()),
                        is_root ? bring(value) : std::string(), deadline);
  const auto& brought = met->bytes[root.position()];
  if (!is_root) {
    value =
        is_here(brought)
            ? value_of(brought)
            : wait_receive(post_receive(root, id_of(met->number, 0, root, rank_)), deadline).value;
  } else if (!is_here(brought)) {
    std::vector<PendingPtr> sends;
    for (Rank other(0); other.value() < num_ranks(); ++other) {
      if (other == rank_) continue;
      sends.push_back(post_send(other, id_of(met->number, 0, rank_, other), value));
    }
    for (const auto& send : sends) wait_send(send, deadline);
  }
  settle(deadline);
  return value;
}

std::vector<c10::IValue> WireTransport::all_gather(c10::IValue value, Deadline deadline) {
  settle(deadline);
  const std::string mine = bring(value);
  const auto met = meet(false, "all_gather", mine, deadline);
  std::vector<PendingPtr> sends;
  IndexedVector<Rank, PendingPtr> receives(num_ranks());
  for (Rank other(0); other.value() < num_ranks(); ++other) {
    if (other == rank_) continue;
    if (!is_here(mine)) {
      sends.push_back(post_send(other, id_of(met->number, 0, rank_, other), value));
    }
    if (!is_here(met->bytes[other.position()])) {
      receives[other] = post_receive(other, id_of(met->number, 0, other, rank_));
    }
  }
  std::vector<c10::IValue> values;
  for (Rank other(0); other.value() < num_ranks(); ++other) {
    if (receives[other]) {
      values.push_back(wait_receive(receives[other], deadline).value);
    } else {
      values.push_back(other == rank_ ? value : value_of(met->bytes[other.position()]));
    }
  }
  for (const auto& send : sends) wait_send(send, deadline);
  settle(deadline);
  return values;
}

at::Tensor WireTransport::all_reduce(const at::Tensor& tensor, Deadline deadline) {
  require<ArgumentError>(tensor.defined(), "all_reduce of rank {}: the tensor is undefined",
                         rank_.value());
  settle(deadline);
  const at::NoGradGuard no_grad;
  const at::Tensor flat = tensor.detach().contiguous().view(-1);
  const std::string mine = bring(flat);
  ByteWriter brought;
  TensorLayout layout = TensorLayout::of(tensor.detach());
  layout.write(brought);
  brought.put_raw(mine.data(), mine.size());
  const auto met = meet(false, "all_reduce", brought.bytes(), deadline);

  std::vector<std::string> parts;
  TensorLayout first;
  for (std::size_t i = 0; i < met->bytes.size(); ++i) {
    ByteReader in(met->bytes[i]);
    const auto other = TensorLayout::read(in);
    if (i == 0) first = other;
    // Every rank compares the layouts of all ranks before large values travel. All ranks therefore
    // throw the same error, and none waits for a value that will not come.
    if (other.dtype != first.dtype || other.sizes != first.sizes) {
      throw MetadataError(fmt::format("all_reduce: rank 0 passed {}, rank {} passed {}",
                                      describe_layout(first), i, describe_layout(other)));
    }
    parts.emplace_back(in.take(in.left()));
  }

  at::Tensor sum;
  // Shapes and dtypes are equal, so all ranks make the same choice.
  if (is_here(mine)) {
    sum = value_of(parts[0]).toTensor();
    for (std::size_t i = 1; i < parts.size(); ++i) {
      sum.add_(value_of(parts[i]).toTensor().to(sum.device()));
    }
  } else {
    sum = reduce_in_parts(flat, met->number, deadline);
  }
  auto result = at::empty_like(tensor.detach());
  result.copy_(sum.view(tensor.sizes()));
  settle(deadline);
  return result;
}

// Each rank sums one part, in the order of the ranks, and sends the sum to all.
at::Tensor WireTransport::reduce_in_parts(const at::Tensor& flat, uint64_t meeting,
                                          Deadline deadline) {
  // A rank sends its n bytes at most twice: the parts to their ranks, and its sum to all. If each
  // rank sent its tensor to all, that would be n * (ranks - 1) bytes.
  const auto ranks = static_cast<int64_t>(num_ranks());
  std::vector<PendingPtr> sends;
  IndexedVector<Rank, PendingPtr> addends(num_ranks());
  IndexedVector<Rank, PendingPtr> sums(num_ranks());
  for (Rank other(0); other.value() < num_ranks(); ++other) {
    if (other == rank_) continue;
    // Receives before sends: gloo sends nothing before the receive is posted.
    addends[other] = post_receive(other, id_of(meeting, 0, other, rank_));
    sums[other] = post_receive(other, id_of(meeting, 1, other, rank_));
    sends.push_back(
        post_send(other, id_of(meeting, 0, rank_, other), part_of(flat, other.value(), ranks)));
  }
  at::Tensor sum;
  for (Rank other(0); other.value() < num_ranks(); ++other) {
    const auto addend = other == rank_ ? part_of(flat, other.value(), ranks)
                                       : wait_receive(addends[other], deadline).value.toTensor();
    // A copy: this rank's own part is memory of the caller. The order of the ranks gives all ranks
    // the same bits.
    sum = other == Rank(0) ? addend.clone() : sum.add_(addend.to(sum.device()));
  }
  auto result = at::empty_like(flat);
  part_of(result, rank_.value(), ranks).copy_(sum);
  for (Rank other(0); other.value() < num_ranks(); ++other) {
    if (other != rank_) sends.push_back(post_send(other, id_of(meeting, 1, rank_, other), sum));
  }
  for (Rank other(0); other.value() < num_ranks(); ++other) {
    if (!sums[other]) continue;
    part_of(result, other.value(), ranks)
        .copy_(wait_receive(sums[other], deadline).value.toTensor());
  }
  for (const auto& send : sends) wait_send(send, deadline);
  return result;
}

}  // namespace stagecraft::detail
