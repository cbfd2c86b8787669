#pragma once

#include <cstdint>
#include <functional>

#include "stagecraft/base/index.h"

namespace stagecraft {

/// Which part of the backward of a microbatch runs.
enum class BackwardKind : uint8_t {
  kFull,    ///< B
  kInput,   ///< I
  kWeight,  ///< W
};

/// The backward that a scope surrounds.
struct BackwardInfo {
  StageId stage;
  MicrobatchId microbatch;
  BackwardKind kind = BackwardKind::kFull;
  /// The stage's last B or W of the step: afterwards its gradients are complete on this rank.
  bool is_last = false;
};

/// A scope around a backward: a function that calls `backward` once, on the same thread. It is for
/// modules that must know which backward completes their gradients, such as wrappers that reduce
/// gradients over processes.
using AroundBackward =
    std::function<void(const BackwardInfo& info, const std::function<void()>& backward)>;

}  // namespace stagecraft
