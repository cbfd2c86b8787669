#include "stagecraft/attention/packed_attention.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

namespace stagecraft::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The kernels load 16 bytes (eight elements) at a time, and take heads of at most 256 elements.
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

/// A call of the kernel, apart from its tensors.
struct PackedTask : torch::CustomClassHolder {
  PackedSequences sequences;
  PackedLayout layout = PackedLayout::kAsHeads;
  int64_t batch = 0;
  int64_t size = 0;  // of a head, padded
  double scale = 1;
  /// The sizes of query, key and value.
  std::array<std::array<int64_t, 4>, 3> inputs = {};

  bool is_causal() const { return sequences.causal && !sequences.window; }
  /// How many keys the kernel keeps to the left and to the right of the diagonal.
  std::optional<int64_t> left() const { return sequences.window; }
  std::optional<int64_t> right() const {
    return sequences.window ? std::optional<int64_t>(0) : std::nullopt;
  }

  at::Tensor pack(const at::Tensor& x) const { return detail::pack(x, batch, size, layout); }

  /// [tokens, heads, padded size] as [batch, heads, length, size], without the padding.
  at::Tensor unpack(const at::Tensor& rows, int64_t heads, int64_t length, int64_t own) const {
    const at::Tensor x = layout == PackedLayout::kAsHeads
                             ? rows.transpose(0, 1).view({batch, heads, length, size})
                             : rows.view({batch, length, heads, size}).transpose(1, 2);
    return own == size ? x : x.narrow(3, 0, own);
  }
};

/// The kernel's results: attention, log of the sums of exponentials, state of its random numbers
/// in two parts, and an empty tensor.
using Results = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

Results attend(const PackedTask& task, const at::Tensor& q, const at::Tensor& k,
               const at::Tensor& v) {
  const PackedSequences& sequences = task.sequences;
  return at::_flash_attention_forward(
      q, k, v, sequences.cumulative_q, sequences.cumulative_kv, sequences.max_q, sequences.max_kv,
      /*dropout_p=*/0, task.is_causal(),
      /*return_debug_mask=*/false, task.scale, task.left(), task.right());
}

/// The tensor that is saved for the backward: `x` if `rows` is a view of it, otherwise `rows`.
const at::Tensor& to_save(const at::Tensor& x, const at::Tensor& rows) {
  return rows.is_alias_of(x) ? x : rows;
}

/// One autograd node for the kernel and the changes of layout around it. A kernel launch costs more
/// than the computation of most layout changes, and an autograd node costs as much as a launch.
class PackedAttention : public torch::autograd::Function<PackedAttention> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const c10::intrusive_ptr<PackedTask>& task) {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    const at::Tensor rows_q = task->pack(q);
    const at::Tensor rows_k = task->pack(k);
    const at::Tensor rows_v = task->pack(v);
    const auto [rows, sums, seed, offset, empty] = attend(*task, rows_q, rows_k, rows_v);
    at::Tensor out = task->unpack(rows, q.size(1), q.size(2), v.size(3));
    // Save the result itself if it has all the rows, so that torch detects an in-place change of
    // it.
    context->save_for_backward({to_save(q, rows_q), to_save(k, rows_k), to_save(v, rows_v),
                                v.size(3) == task->size ? out : rows, sums, seed, offset});
    context->saved_data["task"] = c10::IValue::make_capsule(task);
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    // Run with autograd if a second derivative is asked for: the kernel then refuses, and its
    // message names it.
    std::optional<at::AutoDispatchBelowADInplaceOrView> no_autograd;
    if (!at::GradMode::is_enabled()) no_autograd.emplace();
    const auto capsule = context->saved_data.at("task").toCapsule();
    const auto& task = static_cast<const PackedTask&>(*capsule);
    const PackedSequences& sequences = task.sequences;
    const variable_list saved = context->get_saved_variables();
    const auto rows = [&](const at::Tensor& x) { return x.dim() == 3 ? x : task.pack(x); };
    const auto [q, k, v] = at::_flash_attention_backward(
        task.pack(grads[0]), rows(saved[0]), rows(saved[1]), rows(saved[2]), rows(saved[3]),
        saved[4], sequences.cumulative_q, sequences.cumulative_kv, sequences.max_q,
        sequences.max_kv, /*dropout_p=*/0, task.is_causal(), saved[5], saved[6], task.scale,
        task.left(), task.right());
    variable_list result(4);
    for (std::size_t i = 0; i < 3; ++i) {
      if (!context->needs_input_grad(i)) continue;
      const auto& [members, heads, length, size] = task.inputs[i];
      result[i] = task.unpack(i == 0 ? q : i == 1 ? k : v, heads, length, size);
      // One key and value served all members, so their gradients are summed.
      if (members != task.batch) result[i] = result[i].sum(0, /*keepdim=*/true);
    }
    return result;
  }
};

bool try_kernel(at::Device device, at::ScalarType type) {
  const at::NoGradGuard no_grad;
  const at::Tensor x = at::zeros({kSizeStep, 1, kSizeStep}, at::TensorOptions(type).device(device));
  PackedTask task;
  PackedSequences& sequences = task.sequences;
  sequences.cumulative_q = at::zeros({2}, at::TensorOptions(at::kInt).device(device));
  sequences.cumulative_q.narrow(0, 1, 1).fill_(kSizeStep);
  sequences.cumulative_kv = sequences.cumulative_q;
  sequences.max_q = sequences.max_kv = kSizeStep;
  try {
    attend(task, x, x, x);
    return true;
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error&) {  // an older device, or a build without the kernel
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
  auto task = c10::make_intrusive<PackedTask>();
  task->sequences = sequences;
  task->layout = layout;
  task->batch = problem.batch;
  task->size = padded_size(q, v);
  task->scale = problem.scale;
  const auto sizes = [](const at::Tensor& x) {
    return std::array<int64_t, 4>{x.size(0), x.size(1), x.size(2), x.size(3)};
  };
  task->inputs = {sizes(q), sizes(k), sizes(v)};
  return PackedAttention::apply(q, k, v, task);
}

}  // namespace stagecraft::detail
