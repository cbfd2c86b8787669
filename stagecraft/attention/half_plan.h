#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/attention/packed_attention.h"

namespace stagecraft::detail {

/// How attention of half types is computed on a device.
enum class HalfWay : uint8_t {
  kDense,   ///< Every score is kept: torch's fused attention.
  kCausal,  ///< A square up to the diagonal: torch's fused causal attention.
  kPacked,  ///< Documents, windows: torch's fused attention of packed sequences.
  kMasked,  ///< Any mask: torch's fused attention with a dense mask.
  kFloat,   ///< The rest, in float32 (attention_kernel.h).
};

struct HalfPlan : torch::CustomClassHolder {
  HalfWay way = HalfWay::kFloat;
  /// For kPacked.
  PackedLayout layout = PackedLayout::kAsHeads;
  PackedSequences packed;
  /// For kMasked: bool [batch, heads, queries, keys] of the mask.
  at::Tensor keep;
  /// The stream of the device on which the tensors were made.
  int64_t stream = 0;
};

/// Chooses the way from the scores that the mask keeps, not from its function. Waits for the
/// device.
c10::intrusive_ptr<HalfPlan> make_half_plan(const AttentionProblem& problem, const at::Tensor& q,
                                            const at::Tensor& v);

/// Plans and chunks of one mask. A mask is immutable, so each is made once and kept. Thread-safe.
/// If several threads ask for the same plan at the same time, each makes it, and the first result
/// is kept.
class MaskPlans {
 public:
  /// The plan for these tensors. The first call for tensors of a kind waits for the device. A step
  /// must therefore have run once before it is captured as a graph.
  c10::intrusive_ptr<HalfPlan> get(const AttentionProblem& problem, const at::Tensor& q,
                                   const at::Tensor& v);

  /// The `count` chunks of the mask. `make` makes them on the first call with this number. They are
  /// kept with the mask, so that their plans outlive a step.
  std::vector<c10::intrusive_ptr<BlockMask>> chunks(
      int64_t count, const std::function<std::vector<c10::intrusive_ptr<BlockMask>>()>& make);

 private:
  using Key = std::tuple<at::DeviceType, at::DeviceIndex, at::ScalarType, PackedLayout, bool,
                         int64_t, int64_t, int64_t>;

  std::mutex mutex_;
  std::map<Key, c10::intrusive_ptr<HalfPlan>> plans_;
  std::map<int64_t, std::vector<c10::intrusive_ptr<BlockMask>>> chunks_;
};

/// The plan of a problem, from its mask if it has one.
c10::intrusive_ptr<HalfPlan> find_half_plan(const AttentionProblem& problem, const at::Tensor& q,
                                            const at::Tensor& v);

}  // namespace stagecraft::detail
