#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "stagecraft/base/deadline.h"
#include "stagecraft/shard/all_gather.h"
#include "stagecraft/shard/flat_layout.h"
#include "stagecraft/shard/shard_group.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// The sum of tensors of one type, in their order, as a new tensor. Undefined tensors do not count;
/// without a defined tensor the sum is undefined. Sums of half types are made in float32 and
/// rounded once.
at::Tensor sum_in_order(const std::vector<at::Tensor>& tensors);

/// Sums the gradients of all members of a group, in the order of the members, and leaves each
/// member its piece of the sums. Like AllGather, it is a set of transfers.
class ReduceScatter {
 public:
  /// `grads`: the gradients by parameter of the layout, in the order of memory, in one dimension;
  /// undefined without a gradient. They must not change before all members are done. `sums` is this
  /// rank's piece.
  ReduceScatter(Transport& transport, const ShardGroup& group, const TransferId& id,
                FlatLayout layout, std::vector<at::Tensor> grads, at::Tensor sums,
                int64_t chunk_bytes = kShardChunkBytes);

  /// Adds up the chunks that have arrived from all members. Returns whether all have.
  bool poll();
  /// Throws as Transport::wait_receive does; MetadataError for gradients of different sizes.
  void wait(Deadline deadline);
  bool is_done() const { return summed_ == num_chunks_; }
  /// Whether the transport no longer reads the gradients. Then they may be released.
  bool is_sent() const;
  std::vector<PendingPtr> take_sends();
  const at::Tensor& sums() const { return sums_; }
  /// By segment of this rank's piece: whether any member had a gradient.
  const std::vector<bool>& has_grad() const { return has_grad_; }

 private:
  TransferId id_of(int64_t chunk) const;
  int64_t begin_of(int64_t chunk) const { return chunk * chunk_; }
  int64_t end_of(int64_t chunk) const;
  at::Tensor own_part(const ShardSegment& segment) const;
  void post(int64_t chunk);
  bool has_arrived(int64_t chunk) const;
  void add_up(int64_t chunk, Deadline deadline);

  Transport& transport_;
  ShardGroup group_;
  TransferId id_;
  FlatLayout layout_;
  std::vector<at::Tensor> grads_;
  at::Tensor sums_;
  std::vector<ShardSegment> own_;  // segments
  std::vector<bool> has_grad_;
  int64_t chunk_;  // elements
  int64_t num_chunks_;
  int64_t summed_ = 0;
  std::vector<std::vector<PendingPtr>> receives_;  // by chunk, then by member
  std::vector<PendingPtr> sends_;
};

}  // namespace stagecraft
