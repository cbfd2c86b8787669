#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "stagecraft/schedule/builders/all.h"
#include "stagecraft/schedule/builders/list_writer.h"

namespace stagecraft::builders {
namespace {

// The two directions of a rank's V: chunk 0 goes towards the last rank, chunk 1 comes back.
class DualPipeWriter {
 public:
  DualPipeWriter(ListWriter& out, int32_t first_stage, int32_t second_stage)
      : out_(out), stage_{first_stage, second_stage} {}

  void forward(int chunk) { out_.forward(stage_[chunk], forwards_[chunk]++); }
  void backward(int chunk) { out_.backward(stage_[chunk], backwards_[chunk]++); }
  void overlap(int f_chunk, int b_chunk) {
    out_.overlap(stage_[f_chunk], forwards_[f_chunk]++, stage_[b_chunk], backwards_[b_chunk]++);
  }
  void backward_input(int chunk) {
    owed_.emplace_back(stage_[chunk], backwards_[chunk]);
    out_.backward_input(stage_[chunk], backwards_[chunk]++);
  }
  /// The W of the oldest I that has none yet, if any.
  void backward_weight() {
    if (paid_ == owed_.size()) return;
    const auto [stage, microbatch] = owed_[paid_++];
    out_.backward_weight(stage, microbatch);
  }

 private:
  ListWriter& out_;
  std::array<int32_t, 2> stage_;
  std::array<int32_t, 2> forwards_{};
  std::array<int32_t, 2> backwards_{};
  std::vector<std::pair<int32_t, int32_t>> owed_;
  std::size_t paid_ = 0;
};

void write_rank(const Dims& dims, int32_t r, ListWriter& list) {
  const int32_t p = dims.p;
  const int32_t after = p - 1 - r;  // ranks after this one
  DualPipeWriter out(list, r, 2 * p - 1 - r);

  // [1] Fill the way down, then both ways.
  for (int32_t i = 0; i < 2 * after; ++i) out.forward(0);
  for (int32_t i = 0; i < r + 1; ++i) {
    out.forward(0);
    out.forward(1);
  }
  // [2] The first gradients. Their W fills the wait for the next forward.
  for (int32_t i = 0; i < after; ++i) {
    out.backward_input(1);
    out.backward_weight();
    out.forward(1);
  }
  // [3] Steady state: forward of one direction overlaps backward of the other.
  for (int32_t i = 0; i < dims.m - 2 * p + r + 1; ++i) {
    if (i == 0 && after == 0) {
      // The last rank has both ends of the turn: this backward needs the forward just before it.
      out.forward(0);
      out.backward(1);
    } else {
      out.overlap(0, 1);
    }
    out.overlap(1, 0);
  }
  // [4] No more forwards down.
  for (int32_t i = 0; i < after; ++i) {
    out.backward(1);
    out.overlap(1, 0);
  }
  // [5] Backward only. From the middle on, W is delayed to fill the last bubbles.
  bool split = false;
  const auto drain = [&](int chunk) {
    if (split) {
      out.backward_input(chunk);
    } else {
      out.backward(chunk);
    }
  };
  const int32_t middle = (r + 1) / 2;
  for (int32_t i = 0; i < r + 1; ++i) {
    if (i == middle && r % 2 == 1) split = true;
    drain(1);
    if (i == middle && r % 2 == 0) split = true;
    drain(0);
  }
  for (int32_t i = 0; i < after; ++i) {
    out.backward_weight();
    drain(0);
  }
  for (int32_t i = 0; i < r + 1; ++i) out.backward_weight();
}

Schedule make_dual_pipe_v(const Dims& dims) {
  auto lists = write_lists(dims, 6 * static_cast<std::size_t>(dims.m),
                           [&](int32_t r, ListWriter& out) { write_rank(dims, r, out); });
  return {Level::kCompute, Placement::v(dims.p, dims.stages()), std::move(lists)};
}

}  // namespace

ScheduleKind dual_pipe_v() {
  return {.name = "DualPipeV",
          .summary = "two stages a rank in a V, forward beside backward",
          .make = make_dual_pipe_v,
          .default_stages_per_rank = 2,
          .stages_per_rank = {.min = 2, .max = 2},
          .min_microbatches = [](int32_t ranks, int32_t stages_per_rank) {
            const int64_t stages = int64_t{ranks} * stages_per_rank;
            return static_cast<int32_t>(std::min<int64_t>(stages, INT32_MAX));
          }};
}

}  // namespace stagecraft::builders
