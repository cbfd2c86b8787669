#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/base/deadline.h"
#include "stagecraft/shard/shard_group.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// The bytes of a chunk. Collectives of a group send their data in chunks, and at most kShardWindow
/// chunks are in flight, so a large unit needs no second copy of its memory.
inline constexpr int64_t kShardChunkBytes = int64_t{16} << 20U;
/// Chunks that are sent before the first one of the other members is placed.
inline constexpr int64_t kShardWindow = 4;
/// Upper limit for the chunks of one collective, in transfer identities.
inline constexpr int32_t kShardMaxChunks = 4096;

/// Gathers the pieces of all members of a group into a buffer. It is a set of transfers, so it
/// works over every transport, at the same time as other transfers and collectives.
///
///   AllGather gather(transport, group, id, whole, own);   // posts, does not wait
///   gather.advance();                                     // between computations
///   gather.wait(deadline);                                // before `whole` is used
///   for (const PendingPtr& send : gather.take_sends()) transport.wait_send(send, deadline);
class AllGather {
 public:
  /// `whole` has the pieces by member; `own` is the piece of this rank. It must not change until
  /// the sends are done: the transport reads it. All members name the same `id`; its microbatch is
  /// the number of the collective among those with the same stages. `places_late`: see `advance`;
  /// by default true on devices other than the CPU.
  AllGather(Transport& transport, const ShardGroup& group, const TransferId& id, at::Tensor whole,
            const at::Tensor& own, int64_t chunk_bytes = kShardChunkBytes,
            std::optional<bool> places_late = std::nullopt);

  /// Places chunks that have arrived, and posts the next ones. On a device, placing a chunk makes
  /// the current stream wait for its transfer, and with the stream all computations that are
  /// launched later. With `places_late`, only as many chunks are placed as it takes to post all of
  /// them.
  void advance();
  /// Places the chunks that have arrived. Returns whether all have.
  bool poll();
  /// Throws as Transport::wait_receive does; MetadataError for a piece of a different size.
  void wait(Deadline deadline);
  bool is_done() const { return placed_ == num_chunks_; }
  /// When the last piece that was waited for was sent.
  Deadline::Clock::time_point sent() const { return sent_; }
  std::vector<PendingPtr> take_sends();

 private:
  TransferId id_of(int64_t chunk) const;
  int64_t begin_of(int64_t chunk) const { return chunk * chunk_; }
  int64_t size_of(int64_t chunk) const;
  void post(int64_t chunk);
  bool has_arrived(int64_t chunk) const;
  void place(int64_t chunk, Deadline deadline);
  void place_arrived(int64_t end);

  Transport& transport_;
  ShardGroup group_;
  TransferId id_;
  at::Tensor whole_;
  at::Tensor own_;
  int64_t chunk_;  // elements
  int64_t num_chunks_;
  bool places_late_;
  int64_t placed_ = 0;
  std::vector<std::vector<PendingPtr>> receives_;  // by chunk, then by member
  std::vector<PendingPtr> sends_;
  Deadline::Clock::time_point sent_ = {};
};

}  // namespace stagecraft
