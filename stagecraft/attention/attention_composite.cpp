#include "stagecraft/attention/attention_composite.h"

#include <algorithm>
#include <limits>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include "stagecraft/attention/attention_kernel.h"
#include "stagecraft/attention/evaluate_mask.h"
#include "stagecraft/attention/piece_mask.h"
#include "stagecraft/base/check.h"
#include "stagecraft/tree/tensor_meta.h"

namespace stagecraft::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr PieceLimit kCpuRows{int64_t{1} << 21, /*whole_slot=*/true};
constexpr PieceLimit kDeviceRows{int64_t{1} << 26, /*whole_slot=*/true};
constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

/// The matrix product a b of [batch, heads, n, m] and [batch, heads, m, l]. Autocast affects
/// neither the product nor its gradients.
class Product : public torch::autograd::Function<Product> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& a, const at::Tensor& b) {
    context->save_for_backward({a, b});
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    return a.matmul(b);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    variable_list result(2);
    if (context->needs_input_grad(0)) result[0] = apply(grads[0], saved[1].transpose(2, 3));
    if (context->needs_input_grad(1)) result[1] = apply(saved[0].transpose(2, 3), grads[0]);
    return result;
  }
};

at::Tensor apply_score_fn(const ScoreFn& score_fn, const at::Tensor& scores, const PlanSlot& slot,
                          const RowPiece& piece) {
  const IndexRange all{piece.runs.front().kv.begin, piece.runs.back().kv.end};
  const bool gaps = piece.columns.defined();
  TileIndices at({slot.b, slot.h, piece.q, gaps ? IndexRange{} : all}, scores.device());
  if (gaps) at.kv = piece.columns.view({1, 1, 1, piece.width});
  const at::Tensor changed = score_fn(scores, at.b, at.h, at.q, at.kv);
  if (!changed.defined() || changed.sizes() != scores.sizes() || !changed.is_floating_point()) {
    throw ArgumentError(fmt::format("the score function must return scores of shape [{}], got {}",
                                    fmt::join(scores.sizes(), ", "), describe(changed)));
  }
  if (changed.device() != scores.device()) {
    throw ArgumentError(fmt::format("the score function returned a tensor on {} for scores on {}",
                                    changed.device().str(), scores.device().str()));
  }
  return changed.to(scores.scalar_type());
}

class Composite {
 public:
  Composite(const AttentionProblem& problem, const ScoreFn& score_fn, const at::Tensor& q,
            const at::Tensor& k, const at::Tensor& v)
      : problem_(problem), score_fn_(score_fn), q_(q), k_(k), v_(v) {}

  /// [members, heads, queries of the piece, value size].
  at::Tensor compute(const PlanSlot& slot, const RowPiece& piece) const {
    const int64_t members = slot.b.size();
    const int64_t heads = slot.h.size();
    if (piece.width == 0) {
      return at::zeros({members, heads, piece.q.size(), v_.size(3)}, q_.options());
    }
    const IndexRange kv_heads{slot.h.begin / problem_.group, (slot.h.end - 1) / problem_.group + 1};
    const int64_t rows = heads / kv_heads.size() * piece.q.size();
    const at::Tensor q = narrow(narrow(narrow(q_, 0, slot.b), 1, slot.h), 2, piece.q)
                             .reshape({members, kv_heads.size(), rows, q_.size(3)});
    const at::Tensor k = keys(k_, slot, kv_heads, piece);
    const at::Tensor v = keys(v_, slot, kv_heads, piece);

    at::Tensor scores = Product::apply(q.mul(problem_.scale), k.transpose(2, 3))
                            .view({members, heads, piece.q.size(), piece.width});
    if (score_fn_) scores = apply_score_fn(score_fn_, scores, slot, piece);
    const PieceMask mask = make_piece_mask(problem_, slot, piece, scores.device());
    at::Tensor dead = mask.dead;
    if (!mask.parts.empty()) scores = masked(scores, mask);
    if (score_fn_) {
      // The score function may have dropped scores itself, by returning -infinity.
      const at::NoGradGuard no_grad;
      const at::Tensor none = scores.amax(-1, /*keepdim=*/true).eq(kMinusInfinity);
      dead = dead.defined() ? dead.logical_or(none) : none;
    }
    if (dead.defined()) scores = scores.masked_fill(dead, 0);
    const at::Tensor p = scores.softmax(-1).view({members, kv_heads.size(), rows, piece.width});
    at::Tensor out = Product::apply(p, v).view({members, heads, piece.q.size(), v.size(3)});
    if (dead.defined()) out = out.masked_fill(dead, 0);
    return out;
  }

 private:
  static at::Tensor keys(const at::Tensor& x, const PlanSlot& slot, const IndexRange& kv_heads,
                         const RowPiece& piece) {
    const at::Tensor members =
        x.size(0) == 1 ? x.expand({slot.b.size(), -1, -1, -1}) : narrow(x, 0, slot.b);
    const at::Tensor part = narrow(members, 1, kv_heads);
    return piece.columns.defined() ? part.index_select(2, piece.columns)
                                   : part.narrow(2, piece.runs.front().kv.begin, piece.width);
  }

  static at::Tensor masked(const at::Tensor& scores, const PieceMask& mask) {
    // One mask for the whole width, so that one operator is recorded.
    auto sizes = scores.sizes().vec();
    for (std::size_t dim = 0; dim < 3; ++dim) {
      int64_t size = 1;
      for (const auto& part : mask.parts)
        size = std::max(size, part.drop.size(static_cast<int64_t>(dim)));
      sizes[dim] = size;
    }
    at::Tensor drop = at::zeros(sizes, scores.options().dtype(at::kBool));
    for (const auto& part : mask.parts) drop.narrow(3, part.offset, part.width).copy_(part.drop);
    return scores.masked_fill(drop, kMinusInfinity);
  }

  const AttentionProblem& problem_;
  const ScoreFn& score_fn_;
  const at::Tensor& q_;
  const at::Tensor& k_;
  const at::Tensor& v_;
};

}  // namespace

at::Tensor attention_composite(const AttentionProblem& problem, const ScoreFn& score_fn,
                               const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  if (problem.batch == 0 || problem.heads() == 0 || problem.q_len == 0) {
    return at::zeros({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options());
  }
  const at::ScalarType type = accumulate_type(q.scalar_type());
  const at::Tensor work_q = q.to(type);
  const at::Tensor work_k = k.to(type);
  const at::Tensor work_v = v.to(type);
  const Composite composite(problem, score_fn, work_q, work_k, work_v);
  const auto slots = plan_rows(problem, q.is_cpu() ? kCpuRows : kDeviceRows, q.device());

  std::vector<at::Tensor> members;
  std::vector<at::Tensor> heads;
  for (const PlanSlot& slot : slots) {
    if (slot.b.size() == 0 || slot.h.size() == 0) continue;
    std::vector<at::Tensor> rows;
    for (const RowPiece& piece : slot.pieces) rows.push_back(composite.compute(slot, piece));
    heads.push_back(at::cat(rows, 2));
    if (slot.h.end == problem.heads()) {
      members.push_back(at::cat(heads, 1));
      heads.clear();
    }
  }
  return at::cat(members, 0).to(q.scalar_type());
}

}  // namespace stagecraft::detail
