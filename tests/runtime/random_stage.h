#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>

#include "stagecraft/tree/stage_body.h"
#include "tests/schedule/random.h"

namespace stagecraft {

/// Tensors in random stages are [rows, kRandomWidth], or [1, kRandomWidth] where they come from
/// parameters alone.
inline constexpr int64_t kRandomWidth = 6;

/// What a stage computes on the tensors it has so far, `a` and `b`.
enum class RandomOp : uint8_t {
  kLinear,
  kWeightTwice,  ///< one weight in two places
  kWeightNorm,   ///< a weight made of parameters alone
  kLayerNorm,
  kActivation,
  kAdd,
  kMultiply,
  kChunk,  ///< nodes with several outputs, some of them not used
  kUnbind,
  kSplit,
  kTopk,
  kInPlace,
  kInPlaceOnView,
  kCustom,  ///< custom autograd functions
  kCustomWeight,
  kCustomOutputs,
  kCountingHook,
  kScalingHook,
  kDropout,
  kDetach,
  kParameterAlone,  ///< reached from no input
  kUnusedParameter,
  kAddLoss,
  kLast,
};
std::string to_string(RandomOp op);

/// What a stage gives away.
enum class RandomOutput : uint8_t {
  kFresh,  ///< a tensor that nothing else holds: its reader may change it in place
  kTensor,
  kInput,  ///< as it came
  kView,
  kParameter,  ///< the parameter itself
  kDetached,
  kLong,  ///< a tensor of integers
  kComplex,
  kDict,
  kTuple,
  kList,
  kInt,
  kBool,
  kDouble,
  kString,
  kNone,
  kLast,
};
std::string to_string(RandomOutput output);

/// How a stage treats one of its input tensors.
enum class RandomUse : uint8_t { kAlways, kNever, kOddMicrobatches, kInPlace, kHook, kLast };
std::string to_string(RandomUse use);

struct RandomStagePlan {
  struct Step {
    RandomOp op;
    std::size_t a;  // modulo the number of tensors there are
    std::size_t b;
  };
  std::vector<Step> steps;
  std::vector<RandomOutput> outputs;
  bool returns_value = false;  ///< the one output as it is, not in a tuple
  /// By number of the input tensor (positional, then by name); beyond it, kAlways.
  std::vector<RandomUse> uses = {};
  bool is_frozen = false;
  c10::ScalarType dtype = c10::ScalarType::Float;
  uint64_t seed = 0;
  /// How often hooks ran.
  std::shared_ptr<std::atomic<int64_t>> hook_calls = {};
};

/// Nothing in it depends on the thread or on what ran before. An empty plan is the identity.
StageBody make_random_stage(const RandomStagePlan& plan);

}  // namespace stagecraft
