#include "stagecraft/attention/packed_attention.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

namespace stagecraft::detail {
namespace {

/// Kernels load 16 bytes at a time, and have no larger heads.
constexpr int64_t kSizeStep = 8;
constexpr int64_t kMaxSize = 256;

int64_t padded_size(const at::Tensor& q, const at::Tensor& v) {
  return (std::max(q.size(3), v.size(3)) + kSizeStep - 1) / kSizeStep * kSizeStep;
}

bool is_aligned(const at::Tensor& x) {
  for (int64_t dim = 0; dim < x.dim() - 1; ++dim) {
    if (x.stride(dim) % kSizeStep != 0) return false;
  }
  return x.stride(-1) == 1 && x.storage_offset() % kSizeStep == 0;
}

/// [batch, heads, length, size] as [tokens, heads, padded size].
at::Tensor pack(const at::Tensor& x, int64_t batch, int64_t size, PackedLayout layout) {
  at::Tensor all = x.size(0) == batch ? x : x.expand({batch, -1, -1, -1});
  if (all.size(3) < size) all = at::constant_pad_nd(all, {0, size - all.size(3)});
  const at::Tensor rows = layout == PackedLayout::kAsHeads
                              ? all.reshape({-1, all.size(2), size}).transpose(0, 1)
                              : all.transpose(1, 2).reshape({-1, all.size(1), size});
  return is_aligned(rows) ? rows : rows.contiguous();
}

at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const PackedSequences& sequences, double scale) {
  std::optional<int64_t> left;
  std::optional<int64_t> right;
  if (sequences.window) {
    left = sequences.window;
    right = 0;
  }
  return std::get<0>(at::_flash_attention_forward(
      q, k, v, sequences.cumulative_q, sequences.cumulative_kv, sequences.max_q, sequences.max_kv,
      /*dropout_p=*/0, /*is_causal=*/sequences.causal && !sequences.window,
      /*return_debug_mask=*/false, scale, left, right));
}

bool try_kernel(at::Device device, at::ScalarType type) {
  const at::NoGradGuard no_grad;
  const at::Tensor x = at::zeros({kSizeStep, 1, kSizeStep}, at::TensorOptions(type).device(device));
  PackedSequences sequences;
  sequences.cumulative_q = at::zeros({2}, at::TensorOptions(at::kInt).device(device));
  sequences.cumulative_q.narrow(0, 1, 1).fill_(kSizeStep);
  sequences.cumulative_kv = sequences.cumulative_q;
  sequences.max_q = sequences.max_kv = kSizeStep;
  try {
    attend(x, x, x, sequences, 1);
    return true;
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error&) {  // no such kernel: an older device, a build without it
    return false;
  }
}

}  // namespace

PackedLayout choose_packed_layout(const AttentionProblem& problem, const at::Tensor& q) {
  const int64_t members = problem.mask ? problem.mask->grid().batch() : 1;
  if (members != 1) return PackedLayout::kAsTokens;
  const bool heads_follow = q.size(0) == 1 || q.stride(0) == q.size(1) * q.stride(1);
  return heads_follow ? PackedLayout::kAsHeads : PackedLayout::kAsTokens;
}

PackedSequences list_sequences(const PackedPlan& plan, int64_t copies, at::Device device) {
  PackedSequences found;
  found.causal = plan.causal;
  found.window = plan.window;
  std::vector<int32_t> q{0};
  std::vector<int32_t> kv{0};
  const auto add = [](std::vector<int32_t>& ends, int64_t& longest, const IndexRange& range) {
    ends.push_back(ends.back() + static_cast<int32_t>(range.size()));
    longest = std::max(longest, range.size());
  };
  for (int64_t copy = 0; copy < copies; ++copy) {
    for (const auto& segments : plan.members) {
      for (const PackedSegment& segment : segments) {
        add(q, found.max_q, segment.q);
        add(kv, found.max_kv, segment.kv);
      }
    }
  }
  found.cumulative_q = at::tensor(q, at::kInt).to(device);
  found.cumulative_kv = at::tensor(kv, at::kInt).to(device);
  return found;
}

bool has_packed_kernel(const at::Tensor& q, const at::Tensor& v) {
  if (padded_size(q, v) > kMaxSize) return false;
  static std::mutex mutex;
  static std::map<std::tuple<at::DeviceType, at::DeviceIndex, at::ScalarType>, bool> known;
  const std::tuple key{q.device().type(), q.device().index(), q.scalar_type()};
  {
    const std::scoped_lock lock(mutex);
    if (const auto found = known.find(key); found != known.end()) return found->second;
  }
  const bool has = try_kernel(q.device(), q.scalar_type());
  const std::scoped_lock lock(mutex);
  return known.emplace(key, has).first->second;
}

at::Tensor packed_attention(const AttentionProblem& problem, const PackedSequences& sequences,
                            PackedLayout layout, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v) {
  const int64_t size = padded_size(q, v);
  const at::Tensor rows =
      attend(pack(q, problem.batch, size, layout), pack(k, problem.batch, size, layout),
             pack(v, problem.batch, size, layout), sequences, problem.scale);
  const at::Tensor out =
      layout == PackedLayout::kAsHeads
          ? rows.transpose(0, 1).view({problem.batch, problem.heads(), problem.q_len, size})
          : rows.view({problem.batch, problem.q_len, problem.heads(), size}).transpose(1, 2);
  return out.narrow(3, 0, v.size(3));
}

}  // namespace stagecraft::detail
