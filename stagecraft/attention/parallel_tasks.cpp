#include "stagecraft/attention/parallel_tasks.h"

#include <atomic>

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

namespace stagecraft::detail {

void run_tasks(int64_t count, bool spread, const TaskWorker& worker) {
  std::atomic<int64_t> taken{0};
  const std::function<int64_t()> next = [&]() -> int64_t {
    const int64_t task = taken.fetch_add(1, std::memory_order_relaxed);
    return task < count ? task : -1;
  };
  const auto work = [&] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    worker(next);
  };

  const int64_t threads = at::get_num_threads();
  if (!spread || threads == 1 || count < threads || at::in_parallel_region()) {
    work();
    return;
  }
  // The tasks must run on threads of libtorch's own OpenMP runtime. On other threads, the operators
  // inside would not know that they already run in parallel. Code compiled here can reach that
  // runtime only through an operator: an iterator over one element for each thread calls back on
  // all of them.
  at::Tensor one_each = at::empty({threads}, at::kByte);
  auto iterator = at::TensorIterator::nullary_op(one_each);
  iterator.for_each([&](char**, const int64_t*, int64_t, int64_t) { work(); }, /*grain_size=*/1);
}

}  // namespace stagecraft::detail
