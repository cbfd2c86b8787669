#pragma once

#include <cstdint>
#include <functional>

namespace stagecraft::detail {

/// Takes task numbers from `next` and runs the tasks, until `next` returns a negative number.
using TaskWorker = std::function<void(const std::function<int64_t()>& next)>;

/// Runs `count` tasks on the intra-op threads of the calling thread, each task on one of them and
/// in no given order. With `spread` false, or fewer tasks than threads, all run on the calling
/// thread and the operators inside may be parallel. `worker` is called once on every thread that
/// takes part. Rethrows the first exception.
///
/// Operators called in a task record no gradients.
void run_tasks(int64_t count, bool spread, const TaskWorker& worker);

}  // namespace stagecraft::detail
