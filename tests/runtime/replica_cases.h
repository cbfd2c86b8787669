#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "stagecraft/schedule/passes/lower.h"
#include "stagecraft/transport/transport.h"
#include "tests/runtime/harness.h"

namespace stagecraft {

/// One pipeline in several replicas, over any transport.
struct ReplicaCase {
  ScheduleCase schedule;
  int32_t replicas = 2;
  /// Rows of each microbatch, by replica.
  std::vector<int64_t> rows = {3, 3};
  std::function<TestModel()> make_model;
  /// How the schedule is lowered; without it, as by default.
  std::optional<LowerOptions> lowering = std::nullopt;
  /// The first step leaves its gradients local.
  bool reduces_once = false;
};

/// Called on every rank of a world of replicas * ranks: trains two steps, and expects losses in the
/// same bits, and gradients up to their last ones, as one pipeline has that is given all of it; and
/// the same bits on every replica.
void check_replicas(Transport& transport, const ReplicaCase& c);

}  // namespace stagecraft
