#include <algorithm>

#include "stagecraft/schedule/builders/all.h"
#include "stagecraft/schedule/builders/list_writer.h"

namespace stagecraft::builders {
namespace {

// Writes the actions of one of a rank's two stages, each kind in the order of the microbatches. An
// action beyond the last microbatch becomes an idle slot, because the order is made for at least 2p
// - 1 microbatches.
class Chunk {
 public:
  Chunk(ListWriter& out, int32_t stage, int32_t microbatches)
      : out_(out), stage_(stage), microbatches_(microbatches) {}

  void forward() { add(ActionType::kForward, forwards_++); }
  void backward_input() { add(ActionType::kBackwardInput, inputs_++); }
  void backward_weight() { add(ActionType::kBackwardWeight, weights_++); }
  void backward() {
    backward_input();
    backward_weight();
  }

  int32_t forwards() const { return forwards_; }
  bool owes_weights() const { return weights_ < inputs_; }

 private:
  void add(ActionType type, int32_t m) {
    if (m < microbatches_) {
      out_.add(stage_, type, m);
    } else {
      out_.idle(1);
    }
  }

  ListWriter& out_;
  int32_t stage_;
  int32_t microbatches_;
  int32_t forwards_ = 0;
  int32_t inputs_ = 0;
  int32_t weights_ = 0;
};

Schedule make_zbv_zero_bubble(const Dims& dims) {
  const int32_t p = dims.p;
  const int32_t n = std::max(2 * p - 1, dims.m);
  auto lists = write_lists(dims, 6 * n + p, [&](int32_t r, ListWriter& out) {
    Chunk down(out, r, dims.m);            // towards the last rank
    Chunk up(out, 2 * p - 1 - r, dims.m);  // and back
    out.idle(r);
    for (int32_t i = 0; i < 2 * (p - r) - 1; ++i) down.forward();
    for (int32_t i = 0; i < r; ++i) {
      up.forward();
      down.forward();
    }
    for (int32_t i = 0; i < p - r; ++i) {
      up.forward();
      up.backward();
    }
    while (up.forwards() < down.forwards() || down.forwards() < n) {
      if (down.forwards() < n) down.forward();
      down.backward();
      up.forward();
      up.backward();
    }
    for (int32_t i = 0; i < r; ++i) {
      down.backward_input();
      up.backward_input();
    }
    for (int32_t i = 0; i < p - r; ++i) {
      down.backward_input();
      down.backward_weight();
    }
    while (up.owes_weights()) up.backward_weight();
    while (down.owes_weights()) down.backward_weight();
  });
  return {Level::kCompute, Placement::v(p, dims.stages()), std::move(lists)};
}

}  // namespace

ScheduleKind zbv_zero_bubble() {
  return {.name = "ZBVZeroBubble",
          .summary = "two stages a rank in a V, weight work in the bubbles",
          .make = make_zbv_zero_bubble,
          .default_stages_per_rank = 2,
          .stages_per_rank = {.min = 2, .max = 2}};
}

}  // namespace stagecraft::builders
