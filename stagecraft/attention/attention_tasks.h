#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/attention/attention_plan.h"
#include "stagecraft/attention/piece_mask.h"

namespace stagecraft::detail {

/// A piece of some members and query heads: whole groups of heads, or one head.
///
///   queries [count(), rows(), size]   keys [count(), width(), size]
///   scores [count(), rows(), width()]
///
/// where count() is the number of kv heads of all members. The queries of the heads of one group
/// follow one another.
class AttentionTask {
 public:
  AttentionTask(const PlanSlot& slot, const RowPiece& piece, const PieceMask& mask, IndexRange b,
                IndexRange h, int64_t group);

  int64_t count() const { return b_.size() * kv_h_.size(); }
  int64_t rows() const { return h_.size() / kv_h_.size() * piece_->q.size(); }
  int64_t width() const { return piece_->width; }

  /// The task's queries of x [batch, heads, q_len, size], as [count(), rows(), size].
  at::Tensor queries(const at::Tensor& x) const;
  /// Writes `value`, shaped as `queries` returns it, into x [batch, heads, q_len, size].
  void store_queries(at::Tensor& x, const at::Tensor& value) const;

  /// The kept keys of x [batch, kv_heads, kv_len, size], as [count(), width(), size].
  at::Tensor keys(const at::Tensor& x) const;
  /// The same for x [batch, kv_heads, size, kv_len], as [count(), size, width()].
  at::Tensor transposed_keys(const at::Tensor& x) const;
  /// Adds alpha * left^T right, shaped as `keys` returns it, to x [batch, kv_heads, kv_len, size].
  void add_to_keys(at::Tensor& x, const at::Tensor& left, const at::Tensor& right,
                   double alpha) const;

  /// Sets the scores that are not kept to minus infinity.
  void mask_scores(at::Tensor& scores) const;
  bool has_dead() const { return mask_->dead.defined(); }
  /// Sets the rows of queries that keep nothing to 0.
  void clear_dead(at::Tensor& rows) const;

  /// Tasks with different values of key() add to different parts of the gradients of key and value.
  std::array<int64_t, 2> key() const { return {b_.begin, kv_h_.begin}; }

 private:
  at::Tensor heads_of(const at::Tensor& x) const;

  const PlanSlot* slot_;
  const RowPiece* piece_;
  const PieceMask* mask_;
  IndexRange b_;
  IndexRange h_;
  IndexRange kv_h_;
};

/// Buffers that successive tasks reuse.
class Scratch {
 public:
  explicit Scratch(const at::TensorOptions& options) : options_(options) {}

  /// Buffer `i` with this shape; the content is not defined. Valid until `i` is taken again.
  at::Tensor take(std::size_t i, at::IntArrayRef shape);

 private:
  at::TensorOptions options_;
  std::array<at::Tensor, 3> buffers_;
};

/// Plans the problem and calls `compute` for all of its tasks. Pieces that keep nothing have no
/// tasks. On the CPU, tasks run on all intra-op threads. With `add_to_keys`, tasks with the same
/// key() run in the order of their queries on one thread. Otherwise the order is unspecified.
void for_each_task(const AttentionProblem& problem, const at::TensorOptions& scratch,
                   bool add_to_keys,
                   const std::function<void(const AttentionTask&, Scratch&)>& compute);

}  // namespace stagecraft::detail
