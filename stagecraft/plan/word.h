#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "stagecraft/plan/instance.h"
#include "stagecraft/plan/schedule_problem.h"
#include "stagecraft/schedule/schedule.h"

namespace stagecraft::plan {

/// An action in a search.
struct Op {
  uint32_t stage : 24;
  uint8_t kind;
  int32_t m;

  Op(int32_t op_kind, int32_t op_stage, int32_t microbatch)
      : stage(static_cast<uint32_t>(op_stage) & 0xFFFFFFU),
        kind(static_cast<uint8_t>(op_kind)),
        m(microbatch) {}
};
static_assert(sizeof(Op) == 8);

/// The actions of a rank in order, and those of all ranks. Each kind of action of a stage takes the
/// microbatches in ascending order, so the sequence of kinds and stages (a word) determines the
/// microbatches.
using Word = std::vector<Op>;
using Words = std::vector<Word>;

/// Numbers the microbatches of each kind and stage of a list from 0 on, in the order of the list.
void renumber(const Instance& in, Word& word);

/// Runs one microbatch after the other, which needs the least memory.
Words sequential_words(const Instance& in);

Schedule to_schedule(const ScheduleProblem& problem, const Words& words);
/// A compute schedule as words, with microbatches numbered again. The B of a split stage becomes I
/// and W, and I and W of a stage that is not split become B. Nothing for a schedule with different
/// stages, ranks or microbatches.
std::optional<Words> to_words(const Instance& in, const Schedule& schedule);

}  // namespace stagecraft::plan
