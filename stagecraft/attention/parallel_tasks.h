#pragma once

#include <cstdint>
#include <functional>

namespace stagecraft::detail {

/// A worker takes task numbers until there are none left; `next` returns a negative number then.
using TaskWorker = std::function<void(const std::function<int64_t()>& next)>;

/// Runs `count` tasks on the intra-op threads of the calling thread, each task on one of them and
/// in no given order. With `spread` false, or fewer tasks than threads, all run on the calling
/// thread and the operators inside may be parallel. `worker` is called once on every thread that
/// takes part. Rethrows the first exception.
///
/// Operators called in a task record no gradients.
void run_tasks(int64_t count, bool spread, const TaskWorker& worker);

}  // namespace stagecraft::detail
