#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/base/shard_kind.h"
#include "stagecraft/transport/transport.h"
#include "tests/runtime/harness.h"

namespace stagecraft {

/// Training with sharded replicas, over any transport.
struct ShardCase {
  ScheduleCase schedule;
  int32_t replicas = 2;
  /// Rows of each microbatch, by replica.
  std::vector<int64_t> rows = {3, 3};
  int64_t width = 20;
  std::function<TestModel()> make_model;
  /// Steps whose gradients are added up for an update.
  int32_t accumulate = 1;
  /// Which of them reduce gradients over the replicas. Empty: all.
  std::vector<bool> reduces = {};
  /// Modules that are units of their own.
  std::vector<std::string> units = {};
  /// Called before each step, on every rank.
  std::function<void(Runner& runner, Transport& transport, int32_t step)> before_step = {};
};

/// This rank's losses, gradients of the last update and final parameters, whole.
struct ShardOutcome {
  std::vector<at::Tensor> losses;
  std::vector<at::Tensor> parameters;
};

/// Called on every rank of a world of replicas * ranks: trains a few updates of plain gradient
/// descent.
ShardOutcome train_sharded(Transport& transport, const ShardCase& c, ShardKind kind);

/// The batch of a replica in one of the steps whose gradients are added up for an update.
Microbatches shard_batch(const ShardCase& c, int32_t update, int32_t part, int32_t replica);
/// Updates, and their factor for gradients.
inline constexpr int32_t kShardUpdates = 3;
inline constexpr double kShardRate = 0.1;

/// The same with every kind: expects the bits of kNone.
void check_kinds(Transport& transport, const ShardCase& c);

}  // namespace stagecraft
