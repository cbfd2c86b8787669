#include "stagecraft/attention/attention_kernel.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "stagecraft/attention/attention_tasks.h"

namespace stagecraft::detail {
namespace {

at::Tensor spread(const at::Tensor& x, int64_t batch) {
  const at::Tensor all = x.expand({batch, -1, -1, -1});
  // On the CPU a task reads one member at a time, so the expanded view is not copied.
  return x.is_cpu() ? all : all.contiguous();
}

at::Tensor transpose(const at::Tensor& x) {
  const at::Tensor view = x.transpose(2, 3);
  // CPU libraries multiply few rows by a transposed view up to three times slower.
  return x.is_cpu() ? view.contiguous() : view;
}

/// The operands of a problem in the form that the tasks multiply.
struct Operands {
  Operands(const AttentionProblem& problem, const at::Tensor& query, const at::Tensor& key,
           const at::Tensor& value) {
    const at::ScalarType type = accumulate_type(query.scalar_type());
    q = query.to(type).contiguous();
    k = key.to(type).contiguous();
    v = value.to(type).contiguous();
    kt = spread(transpose(k), problem.batch);
    vt = spread(transpose(v), problem.batch);
    k = spread(k, problem.batch);
    v = spread(v, problem.batch);
  }

  at::Tensor q;
  at::Tensor k;
  at::Tensor v;
  at::Tensor kt;
  at::Tensor vt;
};

/// Writes the probabilities of a task into buffer 1 and returns them. Buffer 0 is free afterwards.
at::Tensor probabilities(const AttentionTask& task, const at::Tensor& q, const at::Tensor& kt,
                         double scale, Scratch& scratch) {
  at::Tensor scores = scratch.take(0, {task.count(), task.rows(), task.width()});
  at::baddbmm_out(scores, scores, q, kt, /*beta=*/0, /*alpha=*/scale);
  task.mask_scores(scores);
  at::Tensor p = scratch.take(1, scores.sizes());
  return at::_softmax_out(p, scores, 2, /*half_to_float=*/false);
}

/// Undoes `spread` for a gradient.
at::Tensor gather(const at::Tensor& grad, const at::Tensor& like) {
  const at::Tensor sum = like.size(0) == grad.size(0) ? grad : grad.sum(0, /*keepdim=*/true);
  return sum.to(like.scalar_type());
}

}  // namespace

at::ScalarType accumulate_type(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type;
}

at::Tensor attention_forward(const AttentionProblem& problem, const at::Tensor& q,
                             const at::Tensor& k, const at::Tensor& v) {
  const at::NoGradGuard no_grad;
  const Operands x(problem, q, k, v);
  at::Tensor out = at::zeros({q.size(0), q.size(1), q.size(2), v.size(3)}, x.q.options());
  for_each_task(problem, x.q.options(), /*add_to_keys=*/false,
                [&](const AttentionTask& task, Scratch& scratch) {
                  const at::Tensor p = probabilities(
                      task, task.queries(x.q), task.transposed_keys(x.kt), problem.scale, scratch);
                  at::Tensor rows = p.bmm(task.keys(x.v));
                  task.clear_dead(rows);
                  task.store_queries(out, rows);
                });
  return out.to(q.scalar_type());
}

std::array<at::Tensor, 3> attention_backward(const AttentionProblem& problem, const at::Tensor& q,
                                             const at::Tensor& k, const at::Tensor& v,
                                             const at::Tensor& grad_out,
                                             std::array<bool, 3> wanted) {
  const at::NoGradGuard no_grad;
  const auto [want_q, want_k, want_v] = wanted;
  const Operands x(problem, q, k, v);
  const at::Tensor go = grad_out.to(x.q.scalar_type()).contiguous();
  at::Tensor dq = want_q ? at::zeros_like(x.q) : at::Tensor();
  at::Tensor dk = want_k ? at::zeros(x.k.sizes(), x.k.options()) : at::Tensor();
  at::Tensor dv = want_v ? at::zeros(x.v.sizes(), x.v.options()) : at::Tensor();

  for_each_task(problem, x.q.options(), /*add_to_keys=*/want_k || want_v,
                [&, want_q = want_q, want_k = want_k, want_v = want_v](const AttentionTask& task,
                                                                       Scratch& scratch) {
                  const at::Tensor task_q = task.queries(x.q);
                  const at::Tensor p = probabilities(task, task_q, task.transposed_keys(x.kt),
                                                     problem.scale, scratch);
                  at::Tensor task_go = task.queries(go);
                  if (task.has_dead()) {
                    task_go = task_go.clone();
                    task.clear_dead(task_go);
                  }
                  if (want_v) task.add_to_keys(dv, p, task_go, 1);
                  if (!want_q && !want_k) return;

                  at::Tensor dp = scratch.take(0, p.sizes());
                  at::bmm_out(dp, task_go, task.transposed_keys(x.vt));
                  at::Tensor ds = scratch.take(2, p.sizes());
                  at::_softmax_backward_data_out(ds, dp, p, 2, p.scalar_type());
                  if (want_q) task.store_queries(dq, ds.bmm(task.keys(x.k)).mul_(problem.scale));
                  if (want_k) task.add_to_keys(dk, ds, task_q, problem.scale);
                });
  std::array<at::Tensor, 3> grads;
  if (want_q) grads[0] = dq.to(q.scalar_type());
  if (want_k) grads[1] = gather(dk, k);
  if (want_v) grads[2] = gather(dv, v);
  return grads;
}

}  // namespace stagecraft::detail
