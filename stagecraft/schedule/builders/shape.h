#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/schedule.h"

namespace stagecraft::builders {

/// A shape that was checked, with the papers' letters.
struct Dims {
  int32_t p = 1;  ///< ranks
  int32_t l = 1;  ///< stages a rank
  int32_t m = 1;  ///< microbatches

  int32_t stages() const { return p * l; }
};

/// ArgumentError for counts that are not positive or make more actions than a program can hold.
Dims check_shape(std::string_view name, const ScheduleShape& shape,
                 int32_t default_stages_per_rank);
/// ArgumentError unless there are just that many stages a rank.
void check_stages_per_rank(std::string_view name, const Dims& dims, int32_t expected);

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
  /// F of one stage beside B of another.
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
