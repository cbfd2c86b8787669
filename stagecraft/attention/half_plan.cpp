#include "stagecraft/attention/half_plan.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/cat.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace stagecraft::detail {
namespace {

/// A dense mask with more elements would take more memory than it saves time.
constexpr int64_t kMaxMaskScores = int64_t{1} << 27;

c10::Stream current_stream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

/// Frees the tensors of a plan only after the kernels of this stream that read them.
void use_on(const HalfPlan& plan, const c10::Stream& stream) {
  if (static_cast<int64_t>(stream.id()) == plan.stream) return;
  const auto use = [&](const at::Tensor& x) {
    if (x.defined()) x.record_stream(stream);
  };
  use(plan.packed.cumulative_q);
  use(plan.packed.cumulative_kv);
  use(plan.keep);
}

void add_mask(HalfPlan& found, const BlockMask& mask, at::Device device) {
  std::vector<at::Tensor> parts;
  for_each_part(mask, 1, device, [&](int64_t, int64_t, const IndexRange&, const at::Tensor& kept) {
    parts.push_back(kept.flatten(0, 2));
  });
  const auto [batch, heads, q_len, kv_len] = mask.shape();
  found.way = HalfWay::kMasked;
  found.keep = at::cat(parts).view({batch, heads, q_len, kv_len});
}

bool is_packed(const PackedPlan& plan, HalfPlan& found, const AttentionProblem& problem,
               const at::Tensor& q, const at::Tensor& v) {
  if (plan.is_whole()) {
    found.way = plan.causal ? HalfWay::kCausal : HalfWay::kDense;
    return true;
  }
  if (!has_packed_kernel(q, v)) return false;
  found.way = HalfWay::kPacked;
  found.layout = choose_packed_layout(problem, q);
  const bool repeat = plan.members.size() == 1 && found.layout == PackedLayout::kAsTokens;
  found.packed = list_sequences(plan, repeat ? problem.batch : 1, q.device());
  return true;
}

}  // namespace

c10::intrusive_ptr<HalfPlan> make_half_plan(const AttentionProblem& problem, const at::Tensor& q,
                                            const at::Tensor& v) {
  auto found = c10::make_intrusive<HalfPlan>();
  const at::Device device = q.device();
  if (!device.is_cpu()) found->stream = static_cast<int64_t>(current_stream(device).id());
  if (!problem.mask) {
    found->way = HalfWay::kDense;
    return found;
  }
  const BlockMask& mask = *problem.mask;
  const KeptKeys kept = find_kept_keys(mask, device);
  const bool has_dead =
      std::ranges::any_of(kept.ranges, [](const IndexRange& range) { return range.size() == 0; });
  if (!has_dead) {
    const auto plan = plan_packed(kept);
    if (plan && is_packed(*plan, *found, problem, q, v)) return found;
  }
  // torch's fused attention gave wrong gradients where some queries keep nothing (torch 2.11,
  // H200).
  const auto [batch, heads, q_len, kv_len] = mask.shape();
  if (has_dead || batch * heads * q_len > kMaxMaskScores / kv_len) return found;
  add_mask(*found, mask, device);
  // The next call may read the mask on a different stream.
  if (!device.is_cpu()) current_stream(device).synchronize();
  return found;
}

c10::intrusive_ptr<HalfPlan> MaskPlans::get(const AttentionProblem& problem, const at::Tensor& q,
                                            const at::Tensor& v) {
  const PackedLayout layout = choose_packed_layout(problem, q);
  const Key key{q.device().type(),       q.device().index(), q.scalar_type(),  layout,
                has_packed_kernel(q, v), problem.batch,      problem.kv_heads, problem.group};
  {
    const std::scoped_lock lock(mutex_);
    if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
  }
  auto made = make_half_plan(problem, q, v);
  const std::scoped_lock lock(mutex_);
  return plans_.emplace(key, std::move(made)).first->second;
}

std::vector<c10::intrusive_ptr<BlockMask>> MaskPlans::chunks(
    int64_t count, const std::function<std::vector<c10::intrusive_ptr<BlockMask>>()>& make) {
  {
    const std::scoped_lock lock(mutex_);
    if (const auto found = chunks_.find(count); found != chunks_.end()) return found->second;
  }
  auto made = make();
  const std::scoped_lock lock(mutex_);
  return chunks_.emplace(count, std::move(made)).first->second;
}

c10::intrusive_ptr<HalfPlan> find_half_plan(const AttentionProblem& problem, const at::Tensor& q,
                                            const at::Tensor& v) {
  auto plan =
      problem.mask ? problem.mask->plans().get(problem, q, v) : make_half_plan(problem, q, v);
  if (!q.is_cpu()) use_on(*plan, current_stream(q.device()));
  return plan;
}

}  // namespace stagecraft::detail
