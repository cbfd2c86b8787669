#include "stagecraft/attention/attention_tasks.h"

#include <limits>
#include <map>
#include <utility>

#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_add.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/masked_fill.h>

#include "stagecraft/attention/evaluate_mask.h"
#include "stagecraft/attention/parallel_tasks.h"

namespace stagecraft::detail {
namespace {

/// On the CPU one thread computes a piece. It must fit the caches of that thread.
constexpr PieceLimit kCpuPiece{int64_t{1} << 19, /*whole_slot=*/false};
/// Elsewhere a piece must be large enough to fill the device.
constexpr PieceLimit kDevicePiece{int64_t{1} << 26, /*whole_slot=*/true};
/// The most mask elements that exist at the same time.
constexpr int64_t kMaxMaskElements = int64_t{1} << 24;

struct PreparedPiece {
  const PlanSlot* slot;
  const RowPiece* piece;
  PieceMask mask;
};

/// The members and heads of a mask that is shared by some of them.
at::Tensor narrow_mask(const at::Tensor& mask, const PlanSlot& slot, const IndexRange& b,
                       const IndexRange& h) {
  at::Tensor part = mask;
  if (part.size(0) > 1) part = part.narrow(0, b.begin - slot.b.begin, b.size());
  if (part.size(1) > 1) part = part.narrow(1, h.begin - slot.h.begin, h.size());
  return part;
}

void add_tasks(const PreparedPiece& prepared, const AttentionProblem& problem, bool whole_slot,
               std::vector<AttentionTask>& tasks) {
  const PlanSlot& slot = *prepared.slot;
  const auto add = [&](IndexRange b, IndexRange h) {
    tasks.emplace_back(slot, *prepared.piece, prepared.mask, b, h, problem.group);
  };
  if (whole_slot) {
    add(slot.b, slot.h);
    return;
  }
  const int64_t step = slot.h.size() == 1 ? 1 : problem.group;
  for (int64_t b = slot.b.begin; b < slot.b.end; ++b) {
    for (int64_t h = slot.h.begin; h < slot.h.end; h += step) add({b, b + 1}, {h, h + step});
  }
}

}  // namespace

AttentionTask::AttentionTask(const PlanSlot& slot, const RowPiece& piece, const PieceMask& mask,
                             IndexRange b, IndexRange h, int64_t group)
    : slot_(&slot),
      piece_(&piece),
      mask_(&mask),
      b_(b),
      h_(h),
      kv_h_{h.begin / group, (h.end - 1) / group + 1} {}

at::Tensor AttentionTask::queries(const at::Tensor& x) const {
  return narrow(narrow(narrow(x, 0, b_), 1, h_), 2, piece_->q)
      .reshape({count(), rows(), x.size(3)});
}

void AttentionTask::store_queries(at::Tensor& x, const at::Tensor& value) const {
  narrow(narrow(narrow(x, 0, b_), 1, h_), 2, piece_->q)
      .copy_(value.view({b_.size(), h_.size(), piece_->q.size(), x.size(3)}));
}

at::Tensor AttentionTask::heads_of(const at::Tensor& x) const {
  return narrow(narrow(x, 0, b_), 1, kv_h_).view({count(), x.size(2), x.size(3)});
}

at::Tensor AttentionTask::keys(const at::Tensor& x) const {
  const at::Tensor all = heads_of(x);
  return piece_->columns.defined() ? all.index_select(1, piece_->columns)
                                   : all.narrow(1, piece_->runs.front().kv.begin, width());
}

at::Tensor AttentionTask::transposed_keys(const at::Tensor& x) const {
  const at::Tensor all = heads_of(x);
  return piece_->columns.defined() ? all.index_select(2, piece_->columns)
                                   : all.narrow(2, piece_->runs.front().kv.begin, width());
}

void AttentionTask::add_to_keys(at::Tensor& x, const at::Tensor& left, const at::Tensor& right,
                                double alpha) const {
  at::Tensor all = heads_of(x);
  if (piece_->columns.defined()) {
    all.index_add_(1, piece_->columns, left.transpose(1, 2).bmm(right), alpha);
  } else {
    all.narrow(1, piece_->runs.front().kv.begin, width())
        .baddbmm_(left.transpose(1, 2), right, 1, alpha);
  }
}

void AttentionTask::mask_scores(at::Tensor& scores) const {
  const at::Tensor by_head = scores.view({b_.size(), h_.size(), piece_->q.size(), width()});
  for (const PieceMask::Part& part : mask_->parts) {
    by_head.narrow(3, part.offset, part.width)
        .masked_fill_(narrow_mask(part.drop, *slot_, b_, h_),
                      -std::numeric_limits<double>::infinity());
  }
}

void AttentionTask::clear_dead(at::Tensor& rows) const {
  if (!mask_->dead.defined()) return;
  rows.view({b_.size(), h_.size(), piece_->q.size(), rows.size(2)})
      .masked_fill_(narrow_mask(mask_->dead, *slot_, b_, h_), 0);
}

at::Tensor Scratch::take(std::size_t i, at::IntArrayRef shape) {
  int64_t size = 1;
  for (int64_t n : shape) size *= n;
  at::Tensor& buffer = buffers_.at(i);
  if (!buffer.defined() || buffer.numel() < size) buffer = at::empty({size}, options_);
  return buffer.narrow(0, 0, size).view(shape);
}

void for_each_task(const AttentionProblem& problem, const at::TensorOptions& scratch_options,
                   bool add_to_keys,
                   const std::function<void(const AttentionTask&, Scratch&)>& compute) {
  const at::Device device = scratch_options.device();
  const bool on_cpu = device.is_cpu();
  const PieceLimit limit = on_cpu ? kCpuPiece : kDevicePiece;
  const std::vector<PlanSlot> slots = plan_rows(problem, limit, device);

  std::vector<PreparedPiece> wave;
  const auto run_wave = [&] {
    // Tasks with the same key come one after the other: a thread then mostly reads the keys that
    // are still in its cache.
    std::map<std::array<int64_t, 2>, std::vector<AttentionTask>> by_key;
    for (const PreparedPiece& prepared : wave) {
      std::vector<AttentionTask> tasks;
      add_tasks(prepared, problem, limit.whole_slot, tasks);
      for (const AttentionTask& task : tasks) by_key[task.key()].push_back(task);
    }
    std::vector<std::vector<AttentionTask>> groups;
    for (auto& [key, tasks] : by_key) {
      if (add_to_keys) {
        groups.push_back(std::move(tasks));
      } else {
        for (const AttentionTask& task : tasks) groups.push_back({task});
      }
    }
    const auto worker = [&](const std::function<int64_t()>& next) {
      Scratch scratch(scratch_options);
      for (int64_t i = next(); i >= 0; i = next()) {
        for (const AttentionTask& task : groups[static_cast<std::size_t>(i)]) {
          compute(task, scratch);
        }
      }
    };
    run_tasks(static_cast<int64_t>(groups.size()), on_cpu, worker);
    wave.clear();
  };

  int64_t mask_elements = 0;
  for (const PlanSlot& slot : slots) {
    if (slot.b.size() == 0 || slot.h.size() == 0) continue;
    for (const RowPiece& piece : slot.pieces) {
      if (piece.width == 0) continue;
      wave.push_back({&slot, &piece, make_piece_mask(problem, slot, piece, device)});
      mask_elements += wave.back().mask.size();
      if (mask_elements < kMaxMaskElements) continue;
      run_wave();
      mask_elements = 0;
    }
  }
  run_wave();
}

}  // namespace stagecraft::detail
