#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "stagecraft/base/assert.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/schedule.h"

namespace stagecraft::builders {

/// Writes one rank's list.
class ListWriter {
 public:
  explicit ListWriter(std::size_t expected) { list_.reserve(expected); }

  void forward(int32_t stage, int32_t microbatch) { add(stage, ActionType::kForward, microbatch); }
  void backward(int32_t stage, int32_t microbatch) {
    add(stage, ActionType::kBackward, microbatch);
  }
  void backward_input(int32_t stage, int32_t microbatch) {
    add(stage, ActionType::kBackwardInput, microbatch);
  }
  void backward_weight(int32_t stage, int32_t microbatch) {
    add(stage, ActionType::kBackwardWeight, microbatch);
  }
  /// An overlap of F of one stage and B of a different one.
  void overlap(int32_t f_stage, int32_t f_microbatch, int32_t b_stage, int32_t b_microbatch) {
    list_.push_back(Action::overlap(2));
    forward(f_stage, f_microbatch);
    backward(b_stage, b_microbatch);
  }
  /// Nothing when `slots` is not positive.
  void idle(int32_t slots) {
    for (int32_t i = 0; i < slots; ++i) list_.emplace_back();
  }
  void add(int32_t stage, ActionType type, int32_t microbatch) {
    list_.emplace_back(StageId(stage), type, MicrobatchId(microbatch));
  }

  ActionList take() { return std::move(list_); }

 private:
  ActionList list_;
};

/// A list for each rank, from `write(rank, writer)`.
template <typename Write>
std::vector<ActionList> write_lists(const Dims& dims, std::size_t expected, Write&& write) {
  SC_ASSERT(dims.p >= 1 && dims.l >= 1 && dims.m >= 1);
  std::vector<ActionList> lists;
  lists.reserve(static_cast<std::size_t>(dims.p));
  for (int32_t r = 0; r < dims.p; ++r) {
    ListWriter writer(expected);
    write(r, writer);
    lists.push_back(writer.take());
  }
  return lists;
}

}  // namespace stagecraft::builders
