#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace stagecraft {

namespace detail {
class MemoryBlocks;
}

/// Counts the bytes of tensor memory that threads allocate and free, on several accounts, without
/// replacing an allocator: it listens where torch's own profiler does, to the CPU's allocator and
/// to CUDA's caching one (in the sizes that it hands out, which it rounds up).
///
///   MemoryMeter meter(2);
///   {
///     MemoryMeter::Scope scope(meter, 0);
///     x = at::empty({1024});  // 4096 bytes on account 0
///   }
///   meter.peak(0);
///
/// A block stays on the account that it was allocated for until it is freed, by any thread, or
/// until `take_over`. Only threads with a scope are counted, so every thread that frees blocks
/// needs a scope of any account. A block that is freed on a thread without a scope stays counted
/// until its address is used again under a scope: `forget` it before. A block that was allocated
/// without a scope is never counted. When it is freed under one, torch logs a warning ("allocated
/// before the profiling started") for the first and then for every thousandth such block.
///
/// Memory that operators take without these allocators (scratch space of libraries, pinned buffers)
/// or on intra-op threads is not counted.
///
/// All functions may be called by any thread. Only allocations under a scope cost time: about 0.2
/// us for a block and its free, for which threads take turns.
class MemoryMeter {
 public:
  class Scope;

  /// Accounts are numbered from 0. ArgumentError unless there is at least one.
  explicit MemoryMeter(int accounts);

  int accounts() const;

  /// The bytes on the account now, and their maximum since the start or the last reset_peak, which
  /// sets the peak to the current bytes. ArgumentError for an account that does not exist.
  int64_t current(int account) const;
  int64_t peak(int account) const;
  void reset_peak(int account);

  /// Moves the whole memory of a tensor, which other tensors may share, to a different account, as
  /// for a tensor received from a different rank. Does nothing and returns false for memory that is
  /// not counted. ArgumentError for a tensor without storage.
  bool take_over(const at::Tensor& tensor, int account);

  /// Removes the memory of a tensor from its account, as for a result that a thread without a scope
  /// will free. False for memory that is not counted. ArgumentError for a tensor without storage.
  bool forget(const at::Tensor& tensor);

 private:
  std::shared_ptr<detail::MemoryBlocks> blocks_;
};

/// While it lives, allocations of the calling thread count for `account`. Autograd's device threads
/// inherit the scope for a backward that starts inside. Scopes nest, also those of different
/// meters: the innermost one counts allocations, and a free counts for the meter that has the
/// block. Must end on the thread that made it. The meter may be destroyed before the scope.
class MemoryMeter::Scope {
 public:
  /// ArgumentError for an account that does not exist. Error inside a torch profiler of this
  /// thread, which would take the reports for its own. While a profiler that was started inside the
  /// scope runs, nothing is counted.
  Scope(const MemoryMeter& meter, int account);

 private:
  c10::DebugInfoGuard listening_;
};

}  // namespace stagecraft
